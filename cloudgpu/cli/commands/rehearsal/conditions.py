"""`cloudgpu rehearsal capacity | quota | prices | fault rules | advance`: set the conditions of the simulated AWS."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cloudgpu import bounds
from cloudgpu.backends.quota_headroom import QuotaHeadroom
from cloudgpu.backends.rehearsal import start_rehearsal
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json
from cloudgpu.errors import UsageError
from cloudgpu.files import SETTINGS_BYTES, parse_json, read_input, read_text
from cloudgpu.recipe.field_types import DurationS
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.layout import LIMIT_DAYS
from cloudgpu.text import plural

CapacityRows = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ZONE/TYPE/MARKET=COUNT]...",
        help="Number of available instances. Wildcards (*) may be used before the =.",
    ),
]
QuotaRows = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[REGION/FAMILY/MARKET=VCPUS]...",
        help="Quota in vCPUs. FAMILY is an EC2 quota family, such as p. Wildcards (*) may be used before the =.",
    ),
]
PriceRows = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[REGION/TYPE/MARKET=USD]...",
        help="Price in USD per hour. Wildcards (*) may be used before the =. The last match applies.",
    ),
]
FaultFile = Annotated[
    str, typer.Argument(metavar="[FILE]", help="File with JSON rules, or - for stdin. Omit to clear all rules.")
]
Back = Annotated[bool, typer.Option("--back", help="Move the clock back instead.")]
_PRICE = re.compile(r"0*[1-9]\d{0,8}(\.\d{1,12})?|0{1,9}\.0{0,11}[1-9]\d{0,11}", re.ASCII)
"""A price above 0 and below one billion, in decimal notation."""
_MOST = 1_000_000
Moved = Annotated[str, typer.Argument(metavar="DURATION", help="Duration, such as 90s, 20m or 8h.")]


def capacity(rows: CapacityRows = None, json: Json = False) -> None:
    """Limit the capacity of the simulated zones.

    Replaces all capacity limits; without arguments, removes them. Starts the rehearsal cloud if necessary.
    """
    table = read_rows(rows or [])
    context = command_context(json=json)
    client.put_capacity(start_rehearsal(context.environment), table)
    if json:
        context.screen.document({"simulated": True, "capacity": table})
    else:
        context.screen.wrapped(limit_lines("capacity", table))


def quota(rows: QuotaRows = None, json: Json = False) -> None:
    """Set the vCPU quotas of the simulated account.

    Replaces all quotas; without arguments, removes them. Starts the rehearsal cloud if necessary.
    """
    table = read_rows(rows or [])
    context = command_context(json=json)
    client.put_quotas(start_rehearsal(context.environment), table)
    QuotaHeadroom(context.home, context.clock).forget("rehearsal")
    if json:
        context.screen.document({"simulated": True, "quota": table})
    else:
        context.screen.wrapped(limit_lines("quota", table))


def prices(rows: PriceRows = None, json: Json = False) -> None:
    """Change the prices of the simulated instances.

    Replaces all price overrides; without arguments, removes them. MARKET is on-demand or spot. Plans use the new
    prices after `catalog refresh --on rehearsal`. Starts the rehearsal cloud if necessary.
    """
    table = read_prices(rows or [])
    context = command_context(json=json)
    client.put_prices(start_rehearsal(context.environment), table)
    if json:
        context.screen.document({"simulated": True, "prices": table})
    elif not table:
        context.screen.line("simulated prices: same as in the catalog")
    else:
        context.screen.lines(["simulated prices:", *(f"  {key} = {usd} USD/h" for key, usd in table.items())])


def faults(file: FaultFile = "", json: Json = False) -> None:
    """Inject scripted faults into the simulated API.

    Replaces the current rules. A rule makes an API call fail, delays or holds the call, or drops its connection,
    before or after the call takes effect. docs/reference/faults.md lists the fields of a rule. Starts the rehearsal
    cloud if necessary.
    """
    rules = read_rules(file)
    context = command_context(json=json)
    cloud = start_rehearsal(context.environment)
    client.put_faults(cloud, rules)
    if json:
        context.screen.document({"simulated": True, "faults": rules})
    else:
        what = plural(len(rules), "rule") if rules else "none"
        context.screen.line(f"simulated faults: {what}")


def advance(by: Moved, back: Back = False, json: Json = False) -> None:
    """Advance the clock that node timers and expiry schedules use.

    Power-off timers and expiry schedules that are due take effect, as they would on AWS. The clock stays ahead, even
    after a restart of the cloud, so nodes that are launched later may power off at boot. To move the clock back, use
    --back.
    """
    try:
        seconds = bounds.duration_s(by, LIMIT_DAYS * 86400)
    except ValueError as err:
        hint = f"use a duration such as 8h; the clock can move by at most {LIMIT_DAYS} days in total"
        raise UsageError(f"{by!r} is not a valid duration: {err}", hint=hint) from err
    context = command_context(json=json)
    moved_s = -seconds if back else seconds
    client.advance(start_rehearsal(context.environment), moved_s)
    if json:
        context.screen.document({"simulated": True, "advanced_s": moved_s})
    else:
        context.screen.line(f"the simulated nodes' clock moved {'back' if back else 'forward'} by {DurationS(seconds)}")
        if not back:
            context.screen.wrapped(
                ["  nodes launched later also use this clock; to move it back, repeat the command with --back"]
            )


def read_rows(rows: Sequence[str]) -> dict[str, int]:
    """Parse limits such as `us-east-1c/p3dn.24xlarge/on-demand=0` into a dictionary."""
    table = {}
    for row in rows:
        key, _, count = row.rpartition("=")
        try:
            table[key] = bounds.parse_whole_number(count if key.count("/") == 2 else "", most=_MOST)  # noqa: PLR2004
        except ValueError:
            message = f"{row!r} does not have the form A/B/C=NUMBER"
            hint = f"for example: 'us-east-1c/p3dn.24xlarge/on-demand=0' or '*/*/spot=2'; NUMBER is at most {_MOST:,}"
            raise UsageError(message, hint=hint) from None
    return table


def read_prices(rows: Sequence[str]) -> dict[str, str]:
    """Parse prices such as `us-east-1/p3dn.24xlarge/on-demand=29.5` into a dictionary."""
    table = {}
    for row in rows:
        key, _, usd = row.rpartition("=")
        market = key.rpartition("/")[2]
        if key.count("/") != 2 or not _PRICE.fullmatch(usd) or market not in ("on-demand", "spot", "*"):  # noqa: PLR2004
            message = f"{row!r} does not have the form REGION/TYPE/MARKET=USD"
            raise UsageError(message, hint="for example: us-east-1/p3dn.24xlarge/on-demand=29.5")
        table[key] = usd
    return table


def read_rules(file: str) -> list[Any]:
    """Return the rules of a fault script, or an empty list if `file` is empty."""
    if not file:
        return []
    try:
        rules = parse_json(read_input(SETTINGS_BYTES) if file == "-" else read_text(Path(file), SETTINGS_BYTES))
    except (OSError, ValueError) as err:
        message = f"cannot read the fault script {file}: {err}"
        raise UsageError(message, hint="provide a JSON list of rules; see docs/guides/faults.md") from err
    if not isinstance(rules, list):
        message = f"the fault script {file} is not a JSON list"
        raise UsageError(message, hint='for example: [{"action": "CreateFleet", "code": "InternalError"}]')
    return rules


def limit_lines(what: str, table: dict[str, int]) -> list[str]:
    """Return lines that show the current limits; `what` is `capacity` or `quota`."""
    if not table:
        return [f"simulated {what}: unlimited"]
    return [f"simulated {what}:", *(f"  {key} = {count}" for key, count in table.items())]
