"""`cloudgpu rehearsal`: manage the simulated AWS on this machine, its capacity, quotas, prices and clock."""

import re
import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from cloudgpu import bounds
from cloudgpu.backends.quota_headroom import QuotaHeadroom
from cloudgpu.backends.rehearsal import start_rehearsal
from cloudgpu.cli.context import CliContext, command_context, shifted_clock_note
from cloudgpu.cli.lazy import LazyCommand, LazyGroup
from cloudgpu.cli.options import Json, Yes
from cloudgpu.cli.terminal.number_format import format_time, relative_time
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.errors import LedgerError, UsageError
from cloudgpu.files import SETTINGS_BYTES, parse_json, read_input, read_text
from cloudgpu.recipe.field_types import DurationS
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.client import NodeInfo, RehearsalClient, RehearsalStatus
from cloudgpu.rehearsal.layout import LIMIT_DAYS, ended_instances
from cloudgpu.text import command, plural

_COLUMNS = (
    Column("instance"),
    Column("type", priority=1),
    Column("zone", priority=3),
    Column("state"),
    Column("cluster"),
    Column("log in", priority=2, whole=True),
    Column("host key", priority=4, narrow="hide"),
)


def status_json(status: RehearsalStatus) -> dict[str, Any]:
    """Return the documented output of `rehearsal status --json`."""
    return {
        "running": status.cloud is not None,
        "simulated": True,
        "endpoint": status.cloud.url if status.cloud else None,
        "regions": list(status.regions),
        "resident_mib": round(status.resident_mib),
        "clock_ahead_s": round(status.clock_ahead.total_seconds()),
        "nodes": [
            {
                "instance_id": node.instance_id,
                "instance_type": node.instance_type,
                "region": node.region,
                "zone": node.zone,
                "state": node.state,
                "address": node.address,
                "port": node.port,
                "user": node.user,
                "host_key": node.host_key,
                "cluster": node.cluster,
            }
            for node in status.nodes
        ],
    }


def status_lines(status: RehearsalStatus, now: datetime, width: int | None = None) -> list[str]:
    """Return the endpoint and one line per node."""
    if status.cloud is None:
        start = "  commands that need it start it automatically; to start it now: cloudgpu rehearsal start"
        return ["no rehearsal cloud is running", *wrap_lines([start, *_clock(status.clock_ahead, now)], width)]
    head = f"rehearsal cloud (simulated AWS) at {status.cloud.url}, {status.resident_mib:.0f} MiB of memory"
    stops = "" if status.idle_stop_at is None else f"; stops automatically {relative_time(status.idle_stop_at, now)}"
    head_lines = wrap_lines([head, *_clock(status.clock_ahead, now)], width)
    if not status.nodes:
        return [*head_lines, *wrap_lines([f"  no nodes{stops}"], width)]
    table = Table(_COLUMNS, [_row(node) for node in status.nodes], "  ")
    return [*head_lines, *table.lines(width)]


def _clock(ahead: timedelta, now: datetime) -> list[str]:
    note = shifted_clock_note(ahead)
    return [f"  simulated time {format_time(now + ahead)}: {note}"] if note else []


def _row(node: NodeInfo) -> tuple[str, ...]:
    where = f"{node.user}@{node.address} port {node.port}" if node.address else "not listening"
    return node.instance_id, node.instance_type, node.zone, node.state, node.cluster, where, node.host_key


def env_lines(cloud: RehearsalClient) -> list[str]:
    """Return the shell commands that point any AWS client at this cloud."""
    values = {
        "AWS_ENDPOINT_URL": cloud.url,
        "AWS_ACCESS_KEY_ID": cloud.access_key_id,
        "AWS_SECRET_ACCESS_KEY": cloud.secret_access_key,
        "AWS_DEFAULT_REGION": cloud.region,
        "AWS_REGION": cloud.region,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    unset = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_ENDPOINT_URL_EC2")
    return [f"export {name}={shlex.quote(value)}" for name, value in values.items()] + [f"unset {' '.join(unset)}"]


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


class RehearsalCommands(LazyGroup):
    """The commands of `cloudgpu rehearsal`. `fault` is lazy, because only `fault` imports a YAML parser."""

    table = (LazyCommand("fault", "rehearsal.fault", "Apply faults to the simulated AWS."),)


app = typer.Typer(
    cls=RehearsalCommands,
    help="""Manage the simulated AWS on this machine.

    The rehearsal cloud simulates AWS for `--on rehearsal`: its nodes run on this machine, and nothing is charged.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("start")
def start(json: Json = False) -> None:
    """Start the simulated cloud.

    Each CLOUDGPU_HOME has a separate simulated cloud. Does nothing if the cloud is already running. Commands that
    need the cloud start it automatically.
    """
    context = command_context(json=json)
    cloud = start_rehearsal(context.environment)
    if json:
        context.screen.document({"endpoint": cloud.url, "region": cloud.region, "pid": cloud.pid})
    else:
        context.screen.wrapped(
            [f"rehearsal cloud (simulated AWS) at {cloud.url}, process {cloud.pid}; no AWS calls, no charges"]
        )


@app.command("status")
def status(json: Json = False) -> None:
    """Show the endpoint and the simulated nodes.

    Shows the instance ID, type, zone, state, cluster, address, port, user and host key of every node.
    """
    context = command_context(json=json, needs_disk=False)
    cloud_status = client.status(context.home)
    if json:
        context.screen.document(status_json(cloud_status))
    else:
        context.screen.lines(status_lines(cloud_status, context.clock.now(), context.screen.width))


@app.command("stop")
def stop(json: Json = False) -> None:
    """Stop the simulated cloud and its nodes.

    Keeps the state of the cloud, so that `down` can still verify that resources are deleted.
    """
    context = command_context(json=json, needs_disk=False)
    was_running = client.stop(context.home)
    _end_costs(context, "the rehearsal cloud is stopped")
    if json:
        context.screen.document({"was_running": was_running})
    else:
        context.screen.line(
            "rehearsal cloud (simulated AWS) stopped" if was_running else "no rehearsal cloud was running"
        )


def _end_costs(context: CliContext, done: str) -> None:
    """Record in the ledger that the nodes ended. If it cannot be written, print a warning that contains `done`."""
    ended = ended_instances(context.home)
    if not ended:
        return
    from cloudgpu.backends.billing.cluster_billing import record_stop  # noqa: PLC0415 - imports the ledger

    ledger = context.lenient_ledger()
    record_stop(ledger, ended, context.clock.now())
    try:
        ledger.check(done)
    except LedgerError as err:
        later = command("cloudgpu", "rehearsal", "stop")
        context.screen.remark(f"warning: {err.message}; to record later when the nodes ended: {later}")


@app.command("reset")
def reset(yes: Yes = False, json: Json = False) -> None:
    """Delete the simulated cloud and everything in it.

    Stops the cloud's server and nodes, and deletes all resources, S3 buckets, limits and the clock offset. Works even
    if the cloud's files are damaged. To remove the records of the cloud's clusters, use `cloudgpu down`.
    """
    context = command_context(json=json, needs_disk=False)
    context.prompts.confirm("Delete the simulated cloud and everything in it?", yes=yes)
    existed = client.reset(context.home, context.clock.now())
    _end_costs(context, "the rehearsal cloud is deleted")
    if json:
        context.screen.document({"simulated": True, "existed": existed})
    else:
        context.screen.line("rehearsal cloud (simulated AWS) deleted" if existed else "there was no rehearsal cloud")


@app.command("env")
def env(
    pulumi: Annotated[
        bool, typer.Option("--pulumi", help="Also set a PULUMI_HOME whose AWS plugin uses the simulated cloud.")
    ] = False,
) -> None:
    """Print environment variables for AWS clients.

    The variables direct AWS clients to the simulated cloud: `eval "$(cloudgpu rehearsal env)"`. The credentials work
    only with the simulated cloud.
    """
    context = command_context()
    lines = env_lines(start_rehearsal(context.environment))
    if pulumi:
        from cloudgpu.backends.aws.engines import pulumi_lines  # noqa: PLC0415 - imports boto3 and the engines

        lines += pulumi_lines(context.home)
    # The output is for `eval`, so a pipe must receive it unchanged; `env_lines` quotes every value.
    context.screen.raw("".join(f"{line}\n" for line in lines))


@app.command("capacity")
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


@app.command("quota")
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


@app.command("prices")
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


@app.command("faults", hidden=True)  # former name of `fault rules`
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


@app.command("advance")
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
