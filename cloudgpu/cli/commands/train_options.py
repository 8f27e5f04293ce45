"""The options of `cloudgpu train`. Imports nothing slow, so that the help and mistakes are shown quickly."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from cloudgpu.cli.commands.option_groups import PlanOptions, ProvisionOptions
from cloudgpu.cli.commands.options import Json, On, OptionalRecipe, Yes


@dataclass(frozen=True)
class MatrixOptions:
    """The options of `train --matrix`.

    Attributes:
        axes: Axes as `name=value,value`, one for each parameter or field.
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
    cluster: Annotated[str, typer.Option("--cluster", help="Use the cluster with this name, or create it.")] = ""
    source: PlanOptions = field(default_factory=PlanOptions)
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
    json: Json = False
