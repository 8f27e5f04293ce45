"""The recipe file, field by field. The docstring under each field is its documentation everywhere.

Unknown keys are errors: a mistyped key that is silently ignored costs money.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from cloudgpu.recipe.data import Checkpoint, Data
from cloudgpu.recipe.environment import Container, Environment, PythonEnvironment
from cloudgpu.recipe.launching import Launch, LauncherName
from cloudgpu.recipe.metric import Metric, Reference, Work
from cloudgpu.recipe.resources import Prefer, Resources
from cloudgpu.recipe.section import Name, Section
from cloudgpu.recipe.storage import Storage
from cloudgpu.recipe.units import DurationS, PositiveUsd

__all__ = [
    "Budget",
    "Checkpoint",
    "Container",
    "Data",
    "Environment",
    "Launch",
    "LauncherName",
    "Metric",
    "Prefer",
    "PythonEnvironment",
    "Recipe",
    "Reference",
    "Rehearsal",
    "Resources",
    "Scalar",
    "Work",
]

Scalar = str | int | float | bool | None


def _version(value: object) -> object:
    # To Python `True` and `1.0` equal 1, so the literal alone would accept both.
    return value if isinstance(value, int) and not isinstance(value, bool) else str(value).lower()


class Budget(Section):
    """What may be spent, and when everything ends whatever happens."""

    max_usd: PositiveUsd | None = None
    """The plan is refused when its worst case is above this, in USD."""
    expiry: DurationS = DurationS(8 * 3600)
    """After this long the nodes end themselves, for instance `8h`; at most `366d`."""
    idle: DurationS | None = None
    """End the cluster after this long without a run, for instance `20m`."""


class Rehearsal(Section):
    """What differs when the run is rehearsed: the same script, smaller. Absent fields stay as they are."""

    environment: Environment | None = None
    """Replaces `environment`."""
    command: str | None = None
    """Replaces `launch.command`."""
    ranks_per_node: int | None = Field(default=None, ge=1, le=64, strict=True)
    """Replaces `launch.ranks_per_node`."""
    params: dict[str, Scalar] = Field(default_factory=dict)
    """Overrides single parameters."""
    objects: dict[str, str] = Field(default_factory=dict)
    """What stands in for data: `s3://bucket/prefix/` -> path relative to the recipe, put in the rehearsal's S3 before
    the run; other sources, like `nfs://host/sets`, are copied to the nodes from that path."""


class Recipe(Section):
    """A run, complete."""

    schema_version: Annotated[Literal[1], BeforeValidator(_version)] = Field(alias="schema")
    """Version of this format: 1."""
    name: Name
    """Short name: lower case letters, digits and dashes."""
    description: str = ""
    """One sentence."""
    resources: Resources
    """On what."""
    environment: Environment = Environment()
    """Around each rank."""
    data: tuple[Data, ...] = ()
    """Datasets."""
    storage: tuple[Storage, ...] = ()
    """Storage that every node mounts."""
    workdir: str | None = "."
    """Directory, relative to the recipe, sent to every node; null for none."""
    params: dict[str, Scalar] = Field(default_factory=dict)
    """Parameters with their defaults; `--set name=value` changes them."""
    launch: Launch
    """How."""
    metrics: dict[str, Metric] = Field(default_factory=dict)
    """Figures to read from the logs."""
    work: Work | None = None
    """How much there is to do."""
    outputs: tuple[str, ...] = ()
    """Files and directories below the work directory, brought back at the end; globs allowed."""
    outputs_to: str | None = None
    """Where every node brings its `outputs` too when the run has ended, for instance `s3://bucket/results/{run}`; node
    1's go below `node-1/` there."""
    checkpoint: Checkpoint | None = None
    """Checkpoints."""
    budget: Budget = Budget()
    """Money and time."""
    rehearsal: Rehearsal | None = None
    """What differs when rehearsed."""
