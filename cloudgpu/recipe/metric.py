"""The `metrics` and `work` sections of a recipe."""

from typing import Literal

from pydantic import Field

from cloudgpu.recipe.section import Section
from cloudgpu.recipe.units import Amount, Figure


class Reference(Section):
    """A published value of a metric, to compare with."""

    value: Figure
    """The value, in the metric's unit."""
    on: str
    """The hardware that it was measured on."""
    source: str
    """Who published it, and where."""


class Metric(Section):
    """A metric that is read from the ranks' log lines."""

    pattern: str
    """Regular expression with a group named `value`, matched against every line; `docs/guides/metrics.md` lists those
    for common frameworks."""
    take: Literal["last", "mean", "median", "max", "min"] = "last"
    """How to combine the values that one rank prints."""
    skip: int = Field(default=0, ge=0, strict=True)
    """How many of a rank's first values to ignore, for example those printed during warm-up."""
    over_ranks: Literal["first", "sum", "mean", "max", "min"] = "first"
    """How to combine the values of several ranks: take the `first` rank's, which already covers all ranks, or the sum,
    mean, maximum or minimum of all ranks' values."""
    unit: str = ""
    """Unit of the value, for example `img/s`."""
    better: Literal["higher", "lower"]
    """Which direction is better."""
    reference: Reference | None = None
    """A published value to compare with."""
    at_least: Figure | None = None
    """The run fails when the value is below this."""


class Work(Section):
    """How much there is to do, so that the plan can estimate time and cost at the reference rate."""

    metric: str
    """The metric whose reference is the rate; its unit ends with `/s`, for example `img/s`."""
    amount: Amount
    """The amount in the metric's unit without `/s`; 128000000 images are a hundred epochs of ImageNet."""
