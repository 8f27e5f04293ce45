"""`cloudgpu extend`: extend a cluster's expiry."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import typer

from cloudgpu import bounds
from cloudgpu.backends.lifecycle.results import ExtensionResult
from cloudgpu.cli import completion
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json, Verbose, option_seconds
from cloudgpu.cli.terminal.number_format import format_time, money, relative_time
from cloudgpu.cli.terminal.still_running import report_clusters_on_signal
from cloudgpu.clock import utc_text
from cloudgpu.errors import UsageError
from cloudgpu.text import command


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
        raise UsageError("no cluster is running", hint="list clusters: cloudgpu status")
    report_clusters_on_signal(context.records, name)
    runs = context.context(context.target_of(name))
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
