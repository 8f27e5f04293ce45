"""The options of `cloudgpu train`. This module imports nothing slow, so help and usage errors appear quickly."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloudgpu.cli import completion
from cloudgpu.cli.options.environment import EnvironmentOptions
from cloudgpu.cli.options.groups import PlanOptions, ProvisionOptions
from cloudgpu.cli.options.shared import Json, On, OptionalRecipe, Verbose, Yes
from cloudgpu.errors import UsageError

if TYPE_CHECKING:
    from cloudgpu.app.runs.concurrency import Sharing


@dataclass(frozen=True)
class MatrixOptions:
    """The options of `train --matrix`.

    Attributes:
        axes: One `name=value,value` per parameter or recipe field.
    """

    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--matrix",
            metavar="NAME=VALUE,VALUE",
            help="Run every combination of these parameter values, one run at a time on one cluster. Repeatable.",
        ),
    ] = None
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="With --matrix: also write the results to this CSV file."),
    ] = None
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="With --matrix: stop after the first failed run.")] = (
        False
    )
    again: Annotated[
        bool, typer.Option("--again", help="With --matrix: rerun combinations that already have a result.")
    ] = False


@dataclass(frozen=True)
class TrainOptions:
    """The options of `train`, in the order in which its help lists them."""

    recipe: OptionalRecipe = ""
    on: On = None
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster",
            help="Use the cluster with this name, or create it.",
            autocompletion=completion.clusters,
        ),
    ] = ""
    wait: Annotated[
        bool, typer.Option("--wait", help="If another run is in progress on the cluster, start after that run ends.")
    ] = False
    share: Annotated[
        bool, typer.Option("--share", help="Start even if another run is in progress; both runs share the GPUs.")
    ] = False
    source: PlanOptions = field(default_factory=PlanOptions)
    environment: EnvironmentOptions = field(default_factory=EnvironmentOptions)
    yes: Yes = False
    keep: Annotated[bool, typer.Option("--keep", help="Keep the cluster running after the run.")] = False
    keep_on_failure: Annotated[
        bool, typer.Option("--keep-on-failure", help="Keep the cluster running if the run fails.")
    ] = False
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once training has started. To finish the run, use `attach`.")
    ] = False
    matrix: MatrixOptions = MatrixOptions()
    provision: ProvisionOptions = field(default_factory=ProvisionOptions)
    verbose: Verbose = False
    json: Json = False

    @property
    def sharing(self) -> "Sharing":
        """What to do if another run is in progress on the cluster."""
        if self.wait and self.share:
            raise UsageError("--wait and --share are mutually exclusive", hint="run `cloudgpu train --help`")
        return "wait" if self.wait else "share" if self.share else "refuse"
