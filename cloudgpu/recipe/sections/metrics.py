"""The `metrics` and `work` sections of a recipe."""

from typing import Literal

from pydantic import Field

from cloudgpu.recipe.sections.section import Section
from cloudgpu.recipe.units import Amount, Figure


class Reference(Section):
    """A published value of a metric, for comparison."""

    value: Figure
    """Value in the metric's unit."""
    on: str
    """Hardware on which the value was measured."""
    source: str
    """Publication that reports the value: author and URL."""


class Metric(Section):
    """A metric that is read from the ranks' log lines."""

    pattern: str
    """Regular expression with a group named `value`, matched against every line; `docs/guides/metrics.md` lists
    patterns for common frameworks."""
    take: Literal["last", "mean", "median", "max", "min"] = "last"
    """Aggregation of the values that one rank prints."""
    skip: int = Field(default=0, ge=0, strict=True)
    """Number of values to ignore at the start of every rank's output, for example during warm-up."""
    over_ranks: Literal["first", "sum", "mean", "max", "min"] = "first"
    """Aggregation over ranks: `first` uses only the first rank that reports a value, for metrics that already cover all
    ranks; the other options combine the values of all ranks."""
    unit: str = ""
    """Unit of the value, for example `img/s`."""
    better: Literal["higher", "lower"]
    """Whether higher or lower values are better."""
    reference: Reference | None = None
    """Published value for comparison."""
    at_least: Figure | None = None
    """Minimum value; the run fails if the metric is lower. Usually with `better: higher`."""
    at_most: Figure | None = None
    """Maximum value; the run fails if the metric is higher. Usually with `better: lower`."""


class Work(Section):
    """The amount of work, from which the plan estimates time and cost at the reference rate."""

    metric: str
    """Metric whose reference value is the rate. The metric's unit must end with `/s`, for example `img/s`."""
    amount: Amount
    """Amount of work in the metric's unit without `/s`, for example 128000000 images for a hundred epochs of
    ImageNet."""
