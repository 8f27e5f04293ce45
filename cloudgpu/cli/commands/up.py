"""`cloudgpu up`: create a cluster and keep it running."""

from typing import Annotated

import typer

from cloudgpu.app.runs.nodes import check_new_nodes
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.options import (
    Json,
    On,
    OptionalRecipe,
    PlanOptions,
    ProvisionOptions,
    Verbose,
    Yes,
    with_option_groups,
)
from cloudgpu.cli.planning import requester, select_plan_source, show_plan
from cloudgpu.cli.render.cluster import (
    deletion_lines,
    provisioned_json,
    provisioned_rows,
    provisioned_title,
    unfinished_json,
)
from cloudgpu.cli.terminal.interruption import reporting_partial_result
from cloudgpu.run.progress import LogFolder, Stages
from cloudgpu.state.cluster_record import ClusterRecord
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
    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="Return as soon as the instances are running. Requires no SSH access."),
    ] = False,
    provision: ProvisionOptions,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Create a cluster from a recipe and keep it running.

    Waits until every node has finished its bootstrap, then checks the hardware. If the cluster already exists, verifies
    that it matches the recipe and makes no changes, but still waits for nodes that no command has checked yet.
    """
    chosen = select_plan_source(source, recipe, on=on, region=provision.region)
    retry_s = provision.retry_s
    context = command_context(
        json=json,
        verbose=verbose,
        target=chosen.target,
        region=chosen.region,
        allowed_paths=source.allowed_paths,
        **provision.settings,
    )
    planned = chosen.planned(context)
    cluster = require_cluster_name(name or planned.plan.recipe.name)
    show_plan(planned, cluster, context, chosen)
    context.prompts.confirm("Go ahead?", yes=yes)
    backend_context, owner = context.backend_context(), requester(context)
    stages = Stages(context.clock, context.screen.emit)
    context.report_clusters_on_signal(cluster)
    existed = context.records.last_known(cluster) is not None
    context.screen.emit(LogFolder(context.home.cluster(cluster).root))
    with reporting_partial_result(lambda: unfinished_json(cluster, context.records.last_known(cluster), stages)):
        try:
            with stages.stage("provision"):
                provisioned = backend_context.clusters.create(planned.plan, cluster, owner, retry_s=retry_s)
            if not no_wait:
                check_new_nodes(backend_context, provisioned, stages)
        except KeyboardInterrupt:
            _ask_about_cluster(context, cluster, provision.on_interrupt, created=not existed)
            raise
    if json:
        context.screen.document(provisioned_json(provisioned, stages))
    else:
        context.screen.panel(provisioned_title(provisioned), provisioned_rows(provisioned), "green")


def _ask_about_cluster(context: CliContext, cluster: str, choice: str, *, created: bool) -> None:
    """After Ctrl-C in `up`, delete the new cluster if requested, or report its state and how to delete it."""
    record = context.records.cluster(cluster)
    if record is None:
        context.screen.wrapped(["", "interrupted before any resource was created; nothing is left"])
    elif (created or record.state != "up") and _is_to_be_deleted(context, choice, record):
        deleted = context.deletion_context_of(cluster).clusters.delete(cluster, record.placement.region)
        context.screen.wrapped(deletion_lines(deleted))
    else:
        state = "is running" if record.state == "up" else "may be incomplete"
        context.screen.wrapped(
            [
                "",
                f"cluster {cluster} {state}; its nodes power off at {record.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC",
                f"delete it now: {command('cloudgpu', 'down', cluster)}    finish it: run the same `cloudgpu up` again",
            ]
        )


def _is_to_be_deleted(context: CliContext, choice: str, record: ClusterRecord) -> bool:
    state = "was created, but nothing runs on it yet" if record.state == "up" else "may be incomplete"
    return context.prompts.delete_on_interrupt(choice, state, default=True)(f"cluster {record.name}")
