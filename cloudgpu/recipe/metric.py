"""The `metrics` and `work` sections: figures of a run, and how much there is to do."""

from typing import Literal

from pydantic import Field

from cloudgpu.recipe.section import Section
from cloudgpu.recipe.units import Amount, Figure


class Reference(Section):
    """The figure to compare with."""

    value: Figure
    """The figure, in the metric's unit."""
    on: str
    """The hardware it was reached on."""
    source: str
    """Who published it, and where."""


class Metric(Section):
    """A figure read from the ranks' log lines."""

    pattern: str
    """Regular expression with a group named `value`, tried on every line; `docs/guides/metrics.md` has those of the
    usual frameworks."""
    take: Literal["last", "mean", "median", "max", "min"] = "last"
    """Which of the values that a rank prints counts."""
    skip: int = Field(default=0, ge=0, strict=True)
    """So many of a rank's first values are left out: what is printed while it warms up."""
    over_ranks: Literal["first", "sum", "mean", "max", "min"] = "first"
    """What counts where several ranks print it: the `first` of them has the figure of all, or each has its own and
    they are added up, averaged, or the largest or the smallest is taken."""
    unit: str = ""
    """Unit of the value, for instance `img/s`."""
    better: Literal["higher", "lower"]
    """Which direction is better."""
    reference: Reference | None = None
    """The figure to compare with."""
    at_least: Figure | None = None
    """The run fails when the value is below this."""


class Work(Section):
    """How much there is to do, for the plan to tell how long it takes and what it costs at the reference rate."""

    metric: str
    """The metric whose reference is the rate; its unit ends with `/s`, for instance `img/s`."""
    amount: Amount
    """How much of the metric's unit without `/s`: 128000000 images are a hundred epochs of ImageNet."""
