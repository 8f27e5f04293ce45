"""The recipe schema. The docstring below each field is its documentation in the JSON Schema and the reference.

Unknown keys are errors because a mistyped key that is silently ignored can cost money.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from cloudgpu.recipe.sections.launch import (
    Container,
    Environment,
    Launch,
    LauncherName,
    Metric,
    PythonEnvironment,
    Reference,
    Work,
)
from cloudgpu.recipe.sections.resources import Prefer, Resources
from cloudgpu.recipe.sections.section import Name, Section
from cloudgpu.recipe.sections.storage import Checkpoint, Data, Storage
from cloudgpu.recipe.units import DurationS, PositiveUsd
from cloudgpu.settings.tags import check_tags

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
    # In Python, `True` and `1.0` equal 1, so `Literal[1]` alone would accept both.
    return value if isinstance(value, int) and not isinstance(value, bool) else str(value).lower()


class Budget(Section):
    """The spending limit and the lifetime of the cluster."""

    max_usd: PositiveUsd | None = None
    """Maximum cost in USD. A plan whose worst case exceeds this amount is rejected."""
    expiry: DurationS = DurationS(8 * 3600)
    """Time until the nodes terminate themselves, for example `8h`; at most `366d`."""
    idle: DurationS | None = None
    """Time without a run after which the cluster is deleted, for example `20m`. Not implemented yet."""


class Rehearsal(Section):
    """Overrides for a rehearsal of the same script on a smaller scale. Fields that are not set keep their values."""

    environment: Environment | None = None
    """Replacement for `environment`."""
    command: str | None = None
    """Replacement for `launch.command` or `launch.run`."""
    setup: str | None = None
    """Replacement for `setup`; an empty text removes it."""
    run: str | None = None
    """Replacement for `launch.run` or `launch.command`."""
    ranks_per_node: int | None = Field(default=None, ge=1, le=64, strict=True)
    """Replacement for `launch.ranks_per_node`."""
    params: dict[str, Scalar] = Field(default_factory=dict)
    """Replacements for individual parameters."""
    objects: dict[str, str] = Field(default_factory=dict)
    """Local replacements for data sources, for example `s3://bucket/prefix/: sample`; the paths are relative to the
    recipe. Replacements for S3 sources are uploaded to the rehearsal's S3 before the run; replacements for other
    sources, such as `nfs://host/sets`, are copied to the nodes."""


class Recipe(Section):
    """A complete description of a run."""

    schema_version: Annotated[Literal[1], BeforeValidator(_version)] = Field(alias="schema")
    """Version of this format: 1."""
    name: Name
    """Short name of lowercase letters, digits and dashes."""
    description: str = ""
    """Description in one sentence."""
    resources: Resources
    """Nodes: hardware, market and location."""
    environment: Environment = Environment()
    """Environment of the ranks."""
    data: tuple[Data, ...] = ()
    """Datasets that are copied to the nodes or mounted."""
    storage: tuple[Storage, ...] = ()
    """Storage that every node mounts."""
    workdir: str | None = "."
    """Directory in the recipe's folder that is copied to every node; null for none. See `--allow-outside`."""
    params: dict[str, Scalar] = Field(default_factory=dict)
    """Parameters with their defaults; `--set name=value` changes them."""
    setup: str = ""
    """Shell script that runs once on every node before the ranks start, with `bash -eo pipefail` in a copy of the work
    directory, for example to compile an extension. Runs get the files that the script creates. The script runs again
    on a node if the script, `environment` or a file mentioned in the script has changed. With `environment.container`,
    the script runs in the image, and the ranks run in the resulting local image."""
    launch: Launch
    """Launcher, command and number of ranks."""
    metrics: dict[str, Metric] = Field(default_factory=dict)
    """Metrics to read from the logs."""
    work: Work | None = None
    """Amount of work, used by the plan to estimate time and cost."""
    outputs: tuple[str, ...] = ()
    """Files and directories below the work directory to download when the run finishes; globs are allowed. The head
    node's outputs are stored directly in the run's `outputs` directory, the outputs of node 1 in `node-1/`. In a run on
    several nodes, outputs of the head node that are named like such a directory are stored in `node-0/`."""
    outputs_to: str | None = None
    """S3 URL to which every node also uploads its `outputs` when the run finishes, for example
    `s3://bucket/results/{run}`. The names below this URL are those in the run's `outputs` directory."""
    checkpoint: Checkpoint | None = None
    """Checkpoint directory, upload and resume."""
    tags: Annotated[dict[str, str], AfterValidator(check_tags)] = Field(default_factory=dict)
    """Your own tags for every resource of the run's cluster and its storage, for example `CostCenter: "42"`. They are
    added to the tags from the settings, and take precedence over those with the same key."""
    budget: Budget = Budget()
    """Spending limit and expiry."""
    rehearsal: Rehearsal | None = None
    """Overrides for a rehearsal."""
