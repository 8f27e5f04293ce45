"""Render the state of the rehearsal cloud, as text and as JSON, always marked as simulated."""

import shlex
from datetime import datetime, timedelta
from typing import Any

from cloudgpu.cli.terminal.number_format import format_time, relative_time
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.recipe.field_types import DurationS
from cloudgpu.rehearsal.client import NodeInfo, RehearsalClient, RehearsalStatus
from cloudgpu.text import command

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


def shifted_clock_note(ahead: timedelta) -> str:
    """Return how far the simulated clock is ahead or behind and how to reset it; empty if it is not shifted."""
    seconds = round(ahead.total_seconds())
    if not seconds:
        return ""
    by, back = str(DurationS(abs(seconds))), ("--back",) if seconds > 0 else ()
    reset = command("cloudgpu", "rehearsal", "advance", by, *back)
    return f"the simulated clock is {by} {'ahead' if seconds > 0 else 'behind'}; to reset it: {reset}"


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
