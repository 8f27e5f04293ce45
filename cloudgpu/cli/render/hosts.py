"""Self-managed hosts as text and as JSON: in plans, and as results of the `hosts` commands."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.hosts.host import HostsFile, OwnHost
from cloudgpu.plan.host_sets import HostSet
from cloudgpu.plan.plan import format_hourly_rate
from cloudgpu.text import command, plural, printable

if TYPE_CHECKING:
    from cloudgpu.backends.hosts.scan import HostScan, InstallStep

_CANDIDATES = (
    Column("try", right=True),
    Column("hosts", narrow="wrap"),
    Column("pool", priority=1),
    Column("GPUs of each"),
    Column("USD/h", right=True),
)
_INVENTORY = (
    Column("host"),
    Column("address", whole=True),
    Column("pool", priority=1),
    Column("GPUs"),
    Column("driver", priority=2),
    Column("USD/h", right=True, priority=1),
    Column("host key", priority=3, narrow="hide"),
)


def host_set_text(host_set: HostSet) -> str:
    """Format a set of hosts as `2 hosts with 8 x V100 32 GiB each`."""
    memory = f" {host_set.gpu_memory_gib.normalize():f} GiB" if host_set.gpu_memory_gib else ""
    count = f"{len(host_set.hosts)} hosts" if len(host_set.hosts) > 1 else f"host {host_set.hosts[0]}"
    each = " each" if len(host_set.hosts) > 1 else ""
    return f"{count} with {host_set.gpus_per_node} x {host_set.gpu}{memory}{each}"


def host_lines(sets: Sequence[HostSet], width: int | None = None) -> list[str]:
    """Return the sets of hosts in a plan, in the order in which they will be tried."""
    rows = [_row(place, host_set) for place, host_set in enumerate(sets, start=1)]
    return Table(_CANDIDATES, rows, "  ").lines(width)


def _row(position: int, host_set: HostSet) -> tuple[str, ...]:
    gpus = (
        f"{host_set.gpus_per_node} of {host_set.of_gpus}"
        if host_set.gpus_per_node < host_set.of_gpus
        else f"all {host_set.of_gpus}"
    )
    return str(position), host_set.label, host_set.pool or "-", f"{gpus} {host_set.gpu}", rate_text(host_set.rates)


def rate_text(rates: Sequence[Decimal | None]) -> str:
    """Format the sum of hourly rates; `unknown` if any rate is unknown."""
    known = [rate for rate in rates if rate is not None]
    return "unknown" if len(known) < len(rates) else format_hourly_rate(sum(known, Decimal(0)))


def inventory_lines(file: HostsFile, hosts: Sequence[OwnHost], width: int | None = None) -> list[str]:
    """Return the lines of `hosts list`, one row per host."""
    rows = [
        (
            host.name,
            f"{host.user}@{host.address}:{host.port}" + (f" via {host.jump.spelled}" if host.jump else ""),
            host.pool or "-",
            _gpus(host),
            host.driver or "unknown",
            "unknown" if host.rate_usd is None else format_hourly_rate(host.rate_usd),
            "pinned" if host.host_keys else "from known_hosts",
        )
        for host in hosts
    ]
    return [
        f"{len(hosts)} of {plural(len(file.hosts), 'host')} in {file.path}",
        *Table(_INVENTORY, rows, "  ").lines(width),
    ]


def inventory_json(file: HostsFile, hosts: Sequence[OwnHost]) -> dict[str, Any]:
    """Return the documented output of `hosts list --json`. Rates are strings, and unknown values are null."""
    return {
        "file": str(file.path),
        "hosts": [
            {
                "name": host.name,
                "address": host.address,
                "port": host.port,
                "user": host.user,
                "jump": None if host.jump is None else host.jump.spelled,
                "pool": host.pool or None,
                "gpu": host.gpu or None,
                "gpus": host.gpus,
                "gpu_memory_gib": None if host.gpu_memory_gib is None else str(host.gpu_memory_gib),
                "memory_gib": host.memory_gib,
                "cores": host.cores,
                "driver": host.driver or None,
                "private_address": host.private_address or None,
                "network_interface": host.network_interface or None,
                "rate_usd_per_hour": None if host.rate_usd is None else format(host.rate_usd, "f"),
                "host_keys": list(host.host_keys),
            }
            for host in hosts
        ],
    }


def check_lines(results: "Sequence[HostScan]") -> list[str]:
    """Return the lines of `hosts check`, one block per host."""
    return [line for result in results for line in _checked(result)]


def scan_lines(results: "Sequence[HostScan]", added: Mapping[str, list[str]], path: Path) -> list[str]:
    """Return the lines of `hosts scan`: the state of each host, and the fields written to the inventory."""
    lines = [line for result in results for line in _checked(result)]
    for name, fields in added.items():
        lines.append(f"written to {path.name}: {name}: {', '.join(fields)}")
    return lines if added else [*lines, f"nothing to add to {path.name}"]


def scanned_json(results: "Sequence[HostScan]", added: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the documented output of `hosts scan --json` and `hosts check --json`."""
    return {"hosts": [result.as_json() | {"written": list(added.get(result.host.name, []))} for result in results]}


def missing_component_lines(results: "Sequence[tuple[HostScan, tuple[str, ...]]]") -> list[str]:
    """Return the lines of `hosts prepare` without --install: missing components and how to install them."""
    lines = []
    for result, missing in results:
        if result.problem:
            lines.append(f"{result.host.name}: {result.problem}")
            continue
        summary = f"lacks {', '.join(missing)}" if missing else "no component is missing"
        lines.append(f"{result.host.name}: {summary}")
        if missing:
            options = [word for what in missing for word in ("--install", what)]
            lines.append(f"    {command('cloudgpu', 'hosts', 'prepare', result.host.name, *options)}")
    return lines


def step_lines(planned: "Sequence[InstallStep]") -> list[str]:
    """Return the commands that `hosts prepare` would run, one line per command, prefixed with the host."""
    if not planned:
        return ["nothing to install: every component is already installed"]
    return [f"{step.host.name}: {command}" for step in planned for command in step.commands]


def prepared_json(
    results: "Sequence[tuple[HostScan, tuple[str, ...]]]", planned: "Sequence[InstallStep]"
) -> dict[str, Any]:
    """Return the documented output of `hosts prepare --json`."""
    return {
        "hosts": [
            {"name": result.host.name, "problem": result.problem, "lacked": list(missing)}
            for result, missing in results
        ],
        "ran": [{"name": step.host.name, "installed": step.what, "commands": list(step.commands)} for step in planned],
    }


def _checked(result: "HostScan") -> Iterator[str]:
    if result.problem:
        yield f"{result.host.name}  failed: {result.problem}"
        if result.hint:
            yield f"    hint: {result.hint}"
        return
    facts = result.facts
    gpus = facts["gpus"]
    what = f"{len(gpus)} x {gpus[0]['name']}, driver {gpus[0]['driver']}" if gpus else "no GPU"
    busy = {gpu for row in (*facts["leases"],) for gpu in row["gpus"]} | {row["gpu"] for row in facts["processes"]}
    free = f", {len(gpus) - len(busy)} free" if gpus else ""
    yield f"{result.host.name}  {'differs' if result.differs else 'ok'}: {what}{free}"
    memory = f"{facts['memory_mib'] // 1024} GiB of memory, {facts['disk_free_mib'] // 1024} GiB of disk free"
    docker = facts["docker"].partition(",")[0] or "no Docker"
    yield f"    {facts['cpus']} cores, {memory}, Python {facts['python']}, {docker}"
    yield from _engine_lines(facts)
    yield from (f"    {line}" for line in result.differs)
    yield from (f"    leased: {row['told']}" for row in facts["leases"])
    leased = {gpu for row in facts["leases"] for gpu in row["gpus"]}
    yield from (f"    in use: {row['told']}" for row in facts["processes"] if row["gpu"] not in leased)


def _engine_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what prevents containers on a host that has a Docker client. A host without one need not run containers."""
    engine = facts.get("engine") or {}
    if facts["docker"] and engine.get("problem"):
        yield f"    containers cannot run: {printable(str(engine['problem']))}"
        if engine.get("hint"):
            yield f"        {printable(str(engine['hint']))}"
    elif engine.get("rootless") or engine.get("podman"):
        kind = "Podman" if engine.get("podman") else "rootless Docker"
        yield f"    containers run in {kind}, which has not been tested with cloudgpu"


def _gpus(host: OwnHost) -> str:
    if not host.gpus:
        return "unknown"
    memory = f" {host.gpu_memory_gib.normalize():f} GiB" if host.gpu_memory_gib else ""
    return f"{host.gpus} x {host.gpu}{memory}"
