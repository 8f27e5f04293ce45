"""Hosts of one's own as text: in a plan, and as a table."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudgpu.cli.terminal.table import columns
from cloudgpu.hosts.host import HostsFile, OwnHost
from cloudgpu.plan.host_sets import HostSet
from cloudgpu.plan.money import shown
from cloudgpu.text import command

if TYPE_CHECKING:
    from cloudgpu.backends.hosts.prepare import Step
    from cloudgpu.backends.hosts.scan import Scanned

_HEADINGS = ("try", "hosts", "pool", "GPUs of each", "USD/h")
_RIGHT = frozenset({0, 4})


def hosts_shown(one: HostSet) -> str:
    """`2 hosts with 8 x V100 32 GiB each`."""
    memory = f" {one.gpu_memory_gib.normalize():f} GiB" if one.gpu_memory_gib else ""
    count = f"{len(one.hosts)} hosts" if len(one.hosts) > 1 else f"host {one.hosts[0]}"
    each = " each" if len(one.hosts) > 1 else ""
    return f"{count} with {one.gpus_per_node} x {one.gpu}{memory}{each}"


def host_lines(sets: Sequence[HostSet]) -> list[str]:
    """The sets of hosts of a plan, in the order in which they are tried."""
    rows = [_row(place, one) for place, one in enumerate(sets, start=1)]
    return columns([_HEADINGS, *rows], right=_RIGHT, indent="  ")


def _row(place: int, one: HostSet) -> tuple[str, ...]:
    gpus = f"{one.gpus_per_node} of {one.of_gpus}" if one.gpus_per_node < one.of_gpus else f"all {one.of_gpus}"
    return str(place), one.label, one.pool or "-", f"{gpus} {one.gpu}", rate_text(one.rates)


def rate_text(rates: Sequence[Decimal | None]) -> str:
    """The sum of the rates; unknown as soon as one of them is."""
    known = [rate for rate in rates if rate is not None]
    return "unknown" if len(known) < len(rates) else shown(sum(known, Decimal(0)))


def inventory_lines(file: HostsFile, hosts: Sequence[OwnHost]) -> list[str]:
    """`hosts list`: a row a host."""
    heads = ("host", "address", "pool", "GPUs", "driver", "USD/h", "host key")
    rows = [
        (
            one.name,
            f"{one.user}@{one.address}:{one.port}" + (f" by {one.jump.spelled}" if one.jump else ""),
            one.pool or "-",
            _gpus(one),
            one.driver or "unknown",
            "unknown" if one.rate_usd is None else shown(one.rate_usd),
            "pinned" if one.host_keys else "as known_hosts",
        )
        for one in hosts
    ]
    return [f"{len(hosts)} of {len(file.hosts)} hosts in {file.path}", *columns([heads, *rows], right={5}, indent="  ")]


def inventory_json(file: HostsFile, hosts: Sequence[OwnHost]) -> dict[str, Any]:
    """The documented `hosts list --json` form; money as text, null for what nobody said."""
    return {
        "file": str(file.path),
        "hosts": [
            {
                "name": one.name,
                "address": one.address,
                "port": one.port,
                "user": one.user,
                "jump": None if one.jump is None else one.jump.spelled,
                "pool": one.pool or None,
                "gpu": one.gpu or None,
                "gpus": one.gpus,
                "gpu_memory_gib": None if one.gpu_memory_gib is None else str(one.gpu_memory_gib),
                "memory_gib": one.memory_gib,
                "cores": one.cores,
                "driver": one.driver or None,
                "private_address": one.private_address or None,
                "network_interface": one.network_interface or None,
                "rate_usd_per_hour": None if one.rate_usd is None else format(one.rate_usd, "f"),
                "host_keys": list(one.host_keys),
            }
            for one in hosts
        ],
    }


def check_lines(found: "Sequence[Scanned]") -> list[str]:
    """`hosts check`: a block a host."""
    return [line for one in found for line in _checked(one)]


def scan_lines(found: "Sequence[Scanned]", added: Mapping[str, list[str]], path: Path) -> list[str]:
    """`hosts scan`: what was found, and what of it was written down."""
    lines = [line for one in found for line in _checked(one)]
    for name, fields in added.items():
        lines.append(f"written to {path.name}: {name}: {', '.join(fields)}")
    return lines if added else [*lines, f"nothing to add to {path.name}"]


def scanned_json(found: "Sequence[Scanned]", added: Mapping[str, list[str]]) -> dict[str, Any]:
    """The documented form of `hosts scan --json` and `hosts check --json`."""
    return {"hosts": [one.as_json() | {"written": list(added.get(one.host.name, []))} for one in found]}


def lacking_lines(found: "Sequence[tuple[Scanned, tuple[str, ...]]]") -> list[str]:
    """`hosts prepare` without --install: what is missing, and how to ask for it."""
    lines = []
    for one, lacks in found:
        if one.problem:
            lines.append(f"{one.host.name}: {one.problem}")
            continue
        told = f"lacks {', '.join(lacks)}" if lacks else "has all that prepare could install"
        lines.append(f"{one.host.name}: {told}")
        if lacks:
            options = [word for what in lacks for word in ("--install", what)]
            lines.append(f"    {command('cloudgpu', 'hosts', 'prepare', one.host.name, *options)}")
    return lines


def step_lines(planned: "Sequence[Step]") -> list[str]:
    """The commands that would run."""
    if not planned:
        return ["nothing to install: it is there already"]
    return [f"{step.host.name}: {command}" for step in planned for command in step.commands]


def prepared_json(found: "Sequence[tuple[Scanned, tuple[str, ...]]]", planned: "Sequence[Step]") -> dict[str, Any]:
    """The documented `hosts prepare --json` form."""
    return {
        "hosts": [{"name": one.host.name, "problem": one.problem, "lacked": list(lacks)} for one, lacks in found],
        "ran": [{"name": step.host.name, "installed": step.what, "commands": list(step.commands)} for step in planned],
    }


def _checked(one: "Scanned") -> Iterator[str]:
    if one.problem:
        yield f"{one.host.name}  no: {one.problem}"
        if one.hint:
            yield f"    hint: {one.hint}"
        return
    facts = one.facts
    gpus = facts["gpus"]
    what = f"{len(gpus)} x {gpus[0]['name']}, driver {gpus[0]['driver']}" if gpus else "no GPU"
    busy = {gpu for row in (*facts["leases"],) for gpu in row["gpus"]} | {row["gpu"] for row in facts["processes"]}
    free = f", {len(gpus) - len(busy)} free" if gpus else ""
    yield f"{one.host.name}  {'differs' if one.differs else 'ok'}: {what}{free}"
    memory = f"{facts['memory_mib'] // 1024} GiB of memory, {facts['disk_free_mib'] // 1024} GiB of disk free"
    docker = facts["docker"].partition(",")[0] or "no Docker"
    yield f"    {facts['cpus']} cores, {memory}, Python {facts['python']}, {docker}"
    yield from (f"    {line}" for line in one.differs)
    yield from (f"    leased: {row['told']}" for row in facts["leases"])
    leased = {gpu for row in facts["leases"] for gpu in row["gpus"]}
    yield from (f"    in use: {row['told']}" for row in facts["processes"] if row["gpu"] not in leased)


def _gpus(one: OwnHost) -> str:
    if not one.gpus:
        return "unknown"
    memory = f" {one.gpu_memory_gib.normalize():f} GiB" if one.gpu_memory_gib else ""
    return f"{one.gpus} x {one.gpu}{memory}"
