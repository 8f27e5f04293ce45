"""`cloudgpu down`: delete clusters and confirm with the cloud that nothing is left."""

from contextlib import nullcontext
from typing import Annotated, Any

import typer

from cloudgpu.app.clusters.delete_many import (
    ClusterSelection,
    TeardownResults,
    delete_clusters,
    deletion_reasons,
    select_clusters,
)
from cloudgpu.app.runs.stages import Stages
from cloudgpu.cli import completion
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.options.shared import Json, On, OneRegion, Verbose, Yes
from cloudgpu.cli.render.cluster import deletion_json, deletion_lines, deletions_json, deletions_lines, unfinished_json
from cloudgpu.cli.terminal.interruption import print_on_interrupt, reporting_partial_result
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.cli.terminal.still_running import report_clusters_on_signal
from cloudgpu.targets import is_simulated
from cloudgpu.text import command


def down(  # noqa: PLR0917
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CLUSTER]...",
            help="Cluster names. Optional if only one cluster is running.",
            autocompletion=completion.clusters,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Delete every cluster recorded on this machine.")] = False,
    mine: Annotated[
        bool,
        typer.Option(
            "--mine", help="Delete every cluster recorded on this machine whose owner matches the `owner` setting."
        ),
    ] = False,
    run: Annotated[
        str,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Delete the cluster of this run.",
            autocompletion=completion.runs,
        ),
    ] = "",
    on: On = None,
    region: OneRegion = None,
    yes: Yes = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Delete clusters and confirm that nothing is left.

    Deletes every resource with the cluster's tag. Asks first if another user owns the cluster, a run is in progress on
    it, or you did not name it; in these cases, --yes is required if there is no terminal. Deletes several clusters in
    parallel. Exits 6 if a search for the tag still finds a resource or cannot be completed, and 0 if the cluster was
    already deleted. If a cluster is not recorded on this machine, searches for it in the configured region and in the
    ledger's regions. To search every region, use `cloudgpu sweep`.
    """
    context = command_context(json=json, verbose=verbose, needs_disk=False, target=on, region=region)
    stages = Stages(context.clock, context.emit)
    if names or every or mine or run:
        owner = context.settings.owner if mine else None
        choice = select_clusters(context.records, names or [], every=every, run_id=run, owner=owner)
    else:
        only = context.only_cluster()
        choice = ClusterSelection((only,) if only else (), asked=False)
    if choice.names and not yes:
        reasons = deletion_reasons(context.records, choice.names, context.settings.owner, context.clock.now())
        context.prompts.confirm(
            f"Delete {_named(choice.names)}?",
            yes=choice.asked and not reasons,
            reasons=[line for reason in reasons for line in reason.lines()],
            hint=f"to delete without a prompt: {command('cloudgpu', 'down', *choice.names, '--yes')}",
        )
    if every or mine or len(choice.names) > 1:
        _delete_several(context, choice.names, stages, json=json)
    elif choice.names:
        _delete_one(context, choice.names[0], stages, json=json)
    else:
        _report_no_cluster(context.screen, simulated=is_simulated(context.settings.target), json=json)


def _delete_one(context: CliContext, cluster: str, stages: Stages, *, json: bool) -> None:

    report_clusters_on_signal(context.records, cluster)
    unfinished = f"not everything is deleted yet; to continue: {command('cloudgpu', 'down', cluster)}"
    with (
        reporting_partial_result(lambda: unfinished_json(cluster, context.records.last_known(cluster), stages)),
        print_on_interrupt(context.screen, unfinished),
        stages.stage("down"),
    ):
        ended = context.deletion_context_of(cluster).clusters.delete(cluster, context.settings.region)
    if json:
        context.screen.document(deletion_json(ended, stages))
    else:
        context.screen.wrapped(deletion_lines(ended))


def _delete_several(context: CliContext, clusters: tuple[str, ...], stages: Stages, *, json: bool) -> None:

    results = TeardownResults(())
    report_clusters_on_signal(context.records, *clusters)
    unfinished = f"not everything is deleted yet; to continue: {command('cloudgpu', 'down', *clusters)}"
    with (
        reporting_partial_result(lambda: deletions_json(results, stages)),
        print_on_interrupt(context.screen, unfinished),
    ):
        with stages.stage("down") if clusters else nullcontext():
            results = delete_clusters(
                clusters,
                context.deletion_context_of,
                context.settings.region,
                context.emit,
            )
        if not json:
            context.screen.wrapped(deletions_lines(results))
        failure = results.error()
        if failure is not None:
            raise failure
    if json:
        context.screen.document(deletions_json(results, stages))


def _named(names: tuple[str, ...]) -> str:
    return f"cluster {names[0]}" if len(names) == 1 else f"{len(names)} clusters: {', '.join(names)}"


def _report_no_cluster(screen: Screen, *, simulated: bool, json: bool) -> None:
    if not json:
        screen.line("no cluster is running; nothing to delete")
        return
    nothing: dict[str, Any] = {"cluster": None, "run_id": "", "known": False, "instances_ended": [], "strays_ended": []}
    nothing |= {"storage_ended": [], "storage_kept": []}
    cost = {"usd": "0", "simulated": simulated}
    screen.document({**nothing, "cost": cost, "simulated": simulated, "left": [], "stages": []})
