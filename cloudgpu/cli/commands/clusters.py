"""`cloudgpu down` deletes clusters and confirms that nothing is left; `cloudgpu extend` extends a cluster's expiry."""

from contextlib import nullcontext
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import typer

from cloudgpu import bounds
from cloudgpu.app.cluster_deletion import (
    ClusterSelection,
    TeardownResults,
    delete_clusters,
    deletion_reasons,
    select_clusters,
)
from cloudgpu.backends.lifecycle.results import ExtensionResult
from cloudgpu.cli import completion
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.options import Json, On, OneRegion, Verbose, Yes, option_seconds
from cloudgpu.cli.render.cluster import (
    NO_CLUSTER_TO_DELETE,
    deletion_json,
    deletion_lines,
    deletions_json,
    deletions_lines,
    unfinished_json,
)
from cloudgpu.cli.terminal.interruption import print_on_interrupt, reporting_partial_result
from cloudgpu.cli.terminal.number_format import format_time, money, relative_time
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.clock import utc_text
from cloudgpu.errors import UsageError
from cloudgpu.run.progress import Stages
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
    already deleted. If a cluster is not recorded on this machine, searches for it in the configured region, and in the
    regions of its ledger rows and IAM resources. To search every region, use `cloudgpu sweep`.
    """
    context = command_context(json=json, verbose=verbose, needs_disk=False, target=on, region=region)
    stages = Stages(context.clock, context.screen.emit)
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
    context.report_clusters_on_signal(cluster)
    unfinished = f"not everything is deleted yet; to continue: {command('cloudgpu', 'down', cluster)}"
    with (
        reporting_partial_result(lambda: unfinished_json(cluster, context.records.last_known(cluster), stages)),
        print_on_interrupt(context.screen.lines, unfinished),
        stages.stage("down"),
    ):
        ended = context.deletion_context_of(cluster).clusters.delete(cluster, context.settings.region)
    if json:
        context.screen.document(deletion_json(ended, stages))
    else:
        context.screen.wrapped(deletion_lines(ended))


def _delete_several(context: CliContext, clusters: tuple[str, ...], stages: Stages, *, json: bool) -> None:
    results = TeardownResults(())
    context.report_clusters_on_signal(*clusters)
    unfinished = f"not everything is deleted yet; to continue: {command('cloudgpu', 'down', *clusters)}"
    with (
        reporting_partial_result(lambda: deletions_json(results, stages)),
        print_on_interrupt(context.screen.lines, unfinished),
    ):
        with stages.stage("down") if clusters else nullcontext():
            results = delete_clusters(
                clusters,
                context.deletion_context_of,
                context.settings.region,
                context.screen.emit,
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
        screen.line(NO_CLUSTER_TO_DELETE)
        return
    nothing: dict[str, Any] = {"cluster": None, "run_id": "", "known": False, "instances_ended": [], "strays_ended": []}
    nothing |= {"storage_ended": [], "storage_kept": []}
    cost = {"usd": "0", "simulated": simulated}
    screen.document({**nothing, "cost": cost, "simulated": simulated, "left": [], "stages": []})


def extension_json(extended: ExtensionResult) -> dict[str, Any]:
    """Return the documented output of `extend --json`."""
    record = extended.record
    return {
        "cluster": record.name,
        "simulated": record.simulated,
        "expired_before_at": utc_text(extended.before),
        "expires_at": utc_text(record.lifecycle.expires_at),
        "nodes": record.placement.nodes,
        "worst_case_usd": str(extended.worst_case_usd),
    }


def extension_lines(extended: ExtensionResult, now: datetime) -> list[str]:
    """Return the lines with the new expiry and the worst-case cost until then."""
    record = extended.record
    until = f"{format_time(record.lifecycle.expires_at)} ({relative_time(record.lifecycle.expires_at, now)})"
    before = format_time(extended.before)
    worst = f"{money(extended.worst_case_usd)} at most{' (simulated; nothing is charged)' if record.simulated else ''}"
    return [
        f"cluster {record.name} now expires at {until}, previously {before}; confirmed by every node",
        f"  cost until then: {worst}; to delete it earlier: {command('cloudgpu', 'down', record.name)}",
    ]


def extend(
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="[CLUSTER]",
            help="Cluster name. Optional if only one cluster is running.",
            autocompletion=completion.clusters,
        ),
    ] = "",
    by: Annotated[str, typer.Option("--by", metavar="DURATION", help="Time to add, such as 90m, 2h or 1d.")] = "",
    until: Annotated[
        str,
        typer.Option(
            "--until",
            metavar="TIME",
            help="New expiry, such as 2026-11-21T18:00Z. A time without a UTC offset is interpreted as UTC.",
        ),
    ] = "",
    max_usd: Annotated[
        str, typer.Option("--max-usd", metavar="USD", help="Budget that replaces the recipe's budget.max_usd.")
    ] = "",
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Extend a cluster's expiry.

    Updates the power-off timer of every node, the cluster's expiry schedules and the expected cost in the ledger. The
    budget still applies, and the new expiry can be at most 14 days after the original expiry.
    """
    if bool(by) == bool(until):
        raise UsageError(
            "specify either --by or --until", hint="for example: cloudgpu extend --by 2h, or --until 2026-11-21T18:00Z"
        )
    longer, expiry, cap = timedelta(seconds=option_seconds(by, "--by")), _parse_expiry(until), _usd(max_usd)
    context = command_context(json=json, verbose=verbose)
    name = cluster or context.only_cluster()
    if not name:
        raise UsageError("no cluster is recorded on this machine", hint="list clusters: cloudgpu status")
    context.report_clusters_on_signal(name)
    runs = context.backend_context(context.target_of(name))
    with context.screen.working("extend"):
        extended = runs.clusters.extend(name, until=expiry, by=longer, max_usd=cap)
    if json:
        context.screen.document(extension_json(extended))
    else:
        context.screen.wrapped(extension_lines(extended, context.clock.now()))


def _usd(text: str) -> Decimal | None:
    """Return the amount from `--max-usd`, or None if the option was not given."""
    if not text:
        return None
    try:
        return bounds.positive_usd(text)
    except ValueError as err:
        raise UsageError(
            f"--max-usd: {text!r} is not a valid amount: {err}", hint="specify an amount in US dollars: --max-usd 250"
        ) from None


def _parse_expiry(text: str) -> datetime | None:
    """Return the time from `--until`, or None if the option was not given."""
    if not text:
        return None
    try:
        return bounds.parse_time(text.replace(" UTC", "Z"))
    except ValueError as err:
        raise UsageError(
            f"--until: {text!r} is not a valid time: {err}", hint="specify a time, or a duration: --by 2h"
        ) from None
