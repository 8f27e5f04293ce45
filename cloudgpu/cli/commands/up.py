"""`cloudgpu up`: create a cluster and keep it running."""

from typing import Annotated

import typer

from cloudgpu.app.runs.stages import Stages
from cloudgpu.cli.commands.option_groups import PlanOptions, ProvisionOptions, with_option_groups
from cloudgpu.cli.commands.options import Json, On, OptionalRecipe, Yes
from cloudgpu.cli.commands.requester import requester
from cloudgpu.cli.commands.saved_plan import select_plan_source, show_plan
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.render.cluster import (
    deletion_lines,
    provisioned_json,
    provisioned_rows,
    provisioned_title,
    unfinished_json,
)
from cloudgpu.cli.terminal.interruption import reporting_partial_result
from cloudgpu.cli.terminal.still_running import report_clusters_on_signal
from cloudgpu.state.identifiers import require_cluster_name
from cloudgpu.text import command


@with_option_groups
def up(
    *,
    recipe: OptionalRecipe = "",
    on: On = None,
    name: Annotated[str, typer.Option("--name", help="Cluster name. Default: the recipe's name.")] = "",
    source: PlanOptions,
    yes: Yes = False,
    provision: ProvisionOptions,
    json: Json = False,
) -> None:
    """Create a cluster from a recipe and keep it running.

    If the cluster already exists, verifies that it matches the recipe and makes no changes.
    """
    chosen = select_plan_source(source, recipe, on=on, region=provision.region)
    retry_s = provision.retry_s
    context = command_context(json=json, target=chosen.target, region=chosen.region, **provision.settings)
    planned = chosen.planned(context)
    cluster = require_cluster_name(name or planned.plan.recipe.name)
    show_plan(planned, cluster, context)
    context.prompts.confirm("Go ahead?", yes=yes)
    clusters, owner = context.context().clusters, requester(context)
    stages = Stages(context.clock, context.emit)
    report_clusters_on_signal(context.records, cluster)
    with reporting_partial_result(lambda: unfinished_json(cluster, context.records.last_known(cluster), stages)):
        try:
            with stages.stage("provision"):
                provisioned = clusters.create(planned.plan, cluster, owner, retry_s=retry_s)
        except KeyboardInterrupt:
            _ask_about_cluster(context, cluster, provision.on_interrupt)
            raise
    if json:
        context.screen.document(provisioned_json(provisioned, stages))
    else:
        context.screen.panel(provisioned_title(provisioned), provisioned_rows(provisioned), "green")


def _ask_about_cluster(context: CliContext, cluster: str, choice: str) -> None:
    """After Ctrl-C in `up`, delete the incomplete cluster if requested, or report its state and how to delete it.

    Raises:
        TeardownError: The cluster could not be deleted completely.
    """
    record = context.records.cluster(cluster)
    if record is None:
        context.screen.lines(["", "interrupted before any resource was created; nothing is left"])
    elif record.state != "up" and _is_to_be_deleted(context, choice, cluster):
        deleted = context.deletion_context_of(cluster).clusters.delete(cluster, record.region)
        context.screen.lines(deletion_lines(deleted))
    else:
        state = "is running" if record.state == "up" else "may be incomplete"
        context.screen.lines(
            [
                "",
                f"cluster {cluster} {state}; its nodes power off at {record.expires_at:%Y-%m-%d %H:%M} UTC",
                f"delete it now: {command('cloudgpu', 'down', cluster)}    finish it: run the same `cloudgpu up` again",
            ]
        )


def _is_to_be_deleted(context: CliContext, choice: str, cluster: str) -> bool:
    return context.prompts.delete_on_interrupt(choice, "may be incomplete")(f"cluster {cluster}")
