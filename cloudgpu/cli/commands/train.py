"""`cloudgpu train`: run a recipe from plan to bill."""

from pathlib import Path
from typing import Annotated

import typer

from cloudgpu.cli.commands.options import (
    EngineOption,
    InstallPulumi,
    Json,
    On,
    OnInterrupt,
    OptionalRecipe,
    Owner,
    PlanFile,
    PreferOption,
    Region,
    RetryUntilUp,
    Sets,
    SshCidr,
    Team,
    Yes,
    option_seconds,
)
from cloudgpu.cli.commands.saved_plan import select_plan_source, show_plan
from cloudgpu.cli.commands.train_matrix import MatrixOptions, check_options, train_matrix

MatrixOption = Annotated[
    list[str] | None,
    typer.Option(
        "--matrix",
        metavar="NAME=VALUE,VALUE",
        help="Run every combination of these parameter values, one run at a time on one cluster. Repeatable.",
    ),
]
CsvFile = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="With --matrix: also write the results to this CSV file.")
]


def train(  # noqa: PLR0917
    recipe: OptionalRecipe = "",
    on: On = None,
    cluster: Annotated[str, typer.Option("--cluster", help="Use the cluster with this name, or create it.")] = "",
    sets: Sets = None,
    prefer: PreferOption = None,
    plan: PlanFile = None,
    yes: Yes = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the cluster running after the run.")] = False,
    keep_on_failure: Annotated[
        bool, typer.Option("--keep-on-failure", help="Keep the cluster running if the run fails.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once training has started. To finish the run, use `attach`.")
    ] = False,
    matrix: MatrixOption = None,
    csv: CsvFile = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="With --matrix: stop after the first failed run.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="With --matrix: rerun combinations that already have a result.")
    ] = False,
    retry_until_up: RetryUntilUp = "",
    on_interrupt: OnInterrupt = "ask",
    region: Region = None,
    owner: Owner = None,
    team: Team = None,
    ssh_cidr: SshCidr = None,
    engine: EngineOption = None,
    install_pulumi: InstallPulumi = False,
    json: Json = False,
) -> None:
    """Run a recipe: create a cluster, train, then delete it.

    Plans the run, asks for confirmation, launches the nodes, uploads the code, trains, downloads the outputs, deletes
    the cluster and prints the cost. A cluster that already existed is not deleted. To resume an interrupted matrix, run
    the same command again.
    """
    # Parse this first, so that a missing recipe is reported before the slow imports.
    source = select_plan_source(plan, recipe, sets, prefer, on=on, region=region)
    retry_s = option_seconds(retry_until_up, "--retry-until-up")
    options = MatrixOptions(
        axes=tuple(matrix or ()),
        table=csv,
        fail_fast=fail_fast,
        again=again,
        detach=detach,
        cluster=cluster,
        keep=keep,
        keep_on_failure=keep_on_failure,
        retry_s=retry_s,
        on_interrupt=on_interrupt,
        yes=yes,
    )
    axes = check_options(options, plan)
    from cloudgpu.app.runs.train import TrainRequest
    from cloudgpu.cli.context.local import environ
    from cloudgpu.cli.context.plans import find_reusable_cluster
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.cli.render.run import exit_code, show_outcome
    from cloudgpu.cli.terminal.interruption import report_clusters_on_signal
    from cloudgpu.state.identifiers import require_cluster_name

    wiring = wire(
        json=json,
        target=source.target,
        region=source.region,
        owner=owner,
        team=team,
        ssh_cidr=ssh_cidr,
        engine=engine,
        install_pulumi="true" if install_pulumi else None,
    )
    cluster = require_cluster_name(cluster) if cluster else ""
    if axes:
        train_matrix(wiring, source, axes, options)
    planned = source.planned(wiring)
    show_plan(planned, cluster or find_reusable_cluster(wiring, planned.plan), wiring)
    wiring.prompts.confirm("Go ahead?", yes=yes)
    report_clusters_on_signal(wiring.records, cluster or find_reusable_cluster(wiring, planned.plan))
    request = TrainRequest(
        plan=planned.plan,
        recipe_path=planned.path,
        base=planned.base,
        cluster=cluster,
        keep=keep,
        keep_on_failure=keep_on_failure,
        detach=detach,
        retry_s=retry_s,
        environ=environ(),
        delete_on_interrupt=wiring.prompts.delete_on_interrupt(on_interrupt),
    )
    outcome = wiring.training(planned.plan.target).train(request)
    if json:
        wiring.screen.document(outcome.as_json())
    else:
        show_outcome(outcome, wiring.screen)
    raise typer.Exit(exit_code(outcome))
