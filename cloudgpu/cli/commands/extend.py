"""`cloudgpu extend`: extend a cluster's expiry."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated

import typer

from cloudgpu import bounds
from cloudgpu.cli.commands.options import Json, seconds
from cloudgpu.errors import UsageError


def extend(
    cluster: Annotated[
        str, typer.Argument(metavar="[CLUSTER]", help="Cluster name. Optional if only one is running.")
    ] = "",
    by: Annotated[str, typer.Option("--by", metavar="DURATION", help="Extend by this much: 90m, 2h, 1d.")] = "",
    until: Annotated[
        str, typer.Option("--until", metavar="TIME", help="New expiry, such as 2026-11-21T18:00Z. UTC without a zone.")
    ] = "",
    max_usd: Annotated[
        str, typer.Option("--max-usd", metavar="USD", help="New budget for the cluster, instead of the recipe's.")
    ] = "",
    json: Json = False,
) -> None:
    """Extend a cluster's expiry.

    Updates every node's power-off timer, the cluster's expiry schedule and the expected cost in the ledger. The
    recipe's budget.max_usd still applies, and no node runs more than 14 days past its original expiry.
    """
    from cloudgpu.app.clusters.extend import Extending
    from cloudgpu.cli.context.local import as_target
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.cli.render.expiry_extension import extended_json, extended_lines
    from cloudgpu.cli.terminal.interruption import tell_what_runs

    if bool(by) == bool(until):
        raise UsageError("specify either --by 2h or --until 2026-11-21T18:00Z", hint="cloudgpu extend --help")
    longer, moment, cap = timedelta(seconds=seconds(by, "--by")), _moment(until), _usd(max_usd)
    wiring = wire(json=json)
    name = cluster or wiring.only_cluster()
    if not name:
        raise UsageError("no cluster is running", hint="list clusters: cloudgpu status")
    tell_what_runs(wiring.records, name)
    target = as_target(wiring.records.target(name) or wiring.settings.target)
    if target == "ssh":
        from cloudgpu.backends.hosts.extend import HostExtending

        extended = HostExtending(wiring.hosts.context(wiring.ledger)).extend(name, until=moment, by=longer, max_usd=cap)
    else:
        extending = Extending(wiring.cloud_context(wiring.cloud(target)), wiring.connect)
        extended = extending.extend(name, until=moment, by=longer, max_usd=cap)
    if json:
        wiring.screen.document(extended_json(extended))
    else:
        wiring.screen.lines(extended_lines(extended, wiring.clock.now()))


def _usd(text: str) -> Decimal | None:
    """Return the amount of `--max-usd`, or None if it was not given.

    Raises:
        UsageError: The amount is invalid.
    """
    if not text:
        return None
    try:
        return bounds.positive_usd(text)
    except ValueError as err:
        raise UsageError(
            f"--max-usd: {text!r} is not a valid amount: {err}", hint="for example: --max-usd 250"
        ) from None


def _moment(text: str) -> datetime | None:
    """Return the time of `--until`, or None if it was not given.

    Raises:
        UsageError: The time is invalid.
    """
    if not text:
        return None
    try:
        return bounds.moment(text.replace(" UTC", "Z"))
    except ValueError as err:
        raise UsageError(f"--until: {text!r} is not a valid time: {err}", hint="or give a duration: --by 2h") from None
