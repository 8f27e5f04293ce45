"""`cloudgpu up`: create a cluster and keep it running."""

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


def up(  # noqa: PLR0917
    recipe: OptionalRecipe = "",
    on: On = None,
    name: Annotated[str, typer.Option("--name", help="Cluster name. Default: the recipe's name.")] = "",
    sets: Sets = None,
    prefer: PreferOption = None,
    plan: PlanFile = None,
    yes: Yes = False,
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
    """Create a cluster from a recipe and keep it running.

    If the cluster already exists, verifies that it matches the recipe and makes no changes.
    """
    # Parse this first, so that a missing recipe is reported before the slow imports.
    source = select_plan_source(plan, recipe, sets, prefer, on=on, region=region)
    from cloudgpu.app.clusters.factory import cluster_creator
    from cloudgpu.app.runs.stages import Stages
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.cli.render.cluster import provisioned_json, provisioned_rows, provisioned_title, unfinished_json
    from cloudgpu.cli.terminal.interruption import (
        ask_about_cluster,
        report_clusters_on_signal,
        reporting_partial_result,
    )
    from cloudgpu.state.identifiers import require_cluster_name

    retry_s = option_seconds(retry_until_up, "--retry-until-up")
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
    planned = source.planned(wiring)
    cluster = require_cluster_name(name or planned.plan.recipe.name)
    show_plan(planned, cluster, wiring)
    wiring.prompts.confirm("Go ahead?", yes=yes)
    provisioning = cluster_creator(wiring.context(planned.plan.target), wiring.requester)
    stages = Stages(wiring.clock, wiring.emit)
    report_clusters_on_signal(wiring.records, cluster)
    with reporting_partial_result(lambda: unfinished_json(cluster, wiring.records.last_known(cluster), stages)):
        try:
            with stages.stage("provision"):
                provisioned = provisioning.up(planned.plan, cluster, retry_s=retry_s)
        except KeyboardInterrupt:
            ask_about_cluster(wiring, cluster, on_interrupt)
            raise
    if json:
        wiring.screen.document(provisioned_json(provisioned, stages))
    else:
        wiring.screen.panel(provisioned_title(provisioned), provisioned_rows(provisioned), "green")
