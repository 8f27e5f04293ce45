"""`cloudgpu hosts`: manage the inventory of self-managed hosts."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cloudgpu.backends.factory import open_hosts
from cloudgpu.backends.hosts import scan as host_scanning
from cloudgpu.backends.hosts.scan import (
    HostScan,
    InstallStep,
    Trust,
    find_missing_components,
    plan_install_steps,
    run_install_steps,
)
from cloudgpu.cli import completion
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.options import Json, Yes
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.errors import HostKeyError, StateError, UnfitError, UsageError
from cloudgpu.files import SETTINGS_BYTES, read_text, write_for_user
from cloudgpu.hosts.host import HostsFile, OwnHost
from cloudgpu.hosts.loading import fill_scanned_fields
from cloudgpu.plan.plan import format_hourly_rate
from cloudgpu.recipe.problem import suggestion
from cloudgpu.ssh.connection import ShownKey
from cloudgpu.ssh.keys import same_fingerprint
from cloudgpu.text import command, plural, printable

_INVENTORY = (
    Column("host"),
    Column("address", whole=True),
    Column("pool", priority=1),
    Column("GPUs"),
    Column("driver", priority=2),
    Column("USD/h", right=True, priority=1),
    Column("host key", priority=3, narrow="hide"),
)
app = typer.Typer(help="Manage self-managed hosts, used with --on ssh.", no_args_is_help=True, rich_markup_mode=None)
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[HOST]...",
        help="Hosts to include. Default: all.",
        autocompletion=completion.hosts,
    ),
]
Inventory = Annotated[
    str | None, typer.Option("--hosts", metavar="FILE", help="Inventory file. Default: the `hosts` setting.")
]
_FILES = {"ssh-ed25519": "ssh_host_ed25519_key.pub", "ssh-rsa": "ssh_host_rsa_key.pub"}


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


def check_lines(results: Sequence[HostScan]) -> list[str]:
    """Return the lines of `hosts check`, one block per host."""
    return [line for result in results for line in _checked(result)]


def scan_lines(results: Sequence[HostScan], added: Mapping[str, list[str]], path: Path) -> list[str]:
    """Return the lines of `hosts scan`: the state of each host, and the fields written to the inventory."""
    lines = [line for result in results for line in _checked(result)]
    for name, fields in added.items():
        lines.append(f"written to {path.name}: {name}: {', '.join(fields)}")
    return lines if added else [*lines, f"nothing to add to {path.name}"]


def scanned_json(results: Sequence[HostScan], added: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the documented output of `hosts scan --json` and `hosts check --json`."""
    return {"hosts": [result.as_json() | {"written": list(added.get(result.host.name, []))} for result in results]}


def missing_component_lines(results: Sequence[tuple[HostScan, tuple[str, ...]]]) -> list[str]:
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


def step_lines(planned: Sequence[InstallStep]) -> list[str]:
    """Return the commands that `hosts prepare` would run, one line per command, prefixed with the host."""
    if not planned:
        return ["nothing to install: every component is already installed"]
    return [f"{step.host.name}: {command}" for step in planned for command in step.commands]


def prepared_json(
    results: Sequence[tuple[HostScan, tuple[str, ...]]], planned: Sequence[InstallStep]
) -> dict[str, Any]:
    """Return the documented output of `hosts prepare --json`."""
    return {
        "hosts": [
            {"name": result.host.name, "problem": result.problem, "lacked": list(missing)}
            for result, missing in results
        ],
        "ran": [{"name": step.host.name, "installed": step.what, "commands": list(step.commands)} for step in planned],
    }


def _checked(result: HostScan) -> Iterator[str]:
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


@app.command("list")
def show(names: Names = None, hosts: Inventory = None, json: Json = False) -> None:
    """List the hosts in the inventory.

    Reads only the inventory file and does not connect to the hosts.
    """
    context = command_context(json=json, hosts=hosts)
    inventory = open_hosts(context.environment).file()
    chosen = _chosen(inventory, names)
    if json:
        context.screen.document(inventory_json(inventory, chosen))
    else:
        context.screen.lines(inventory_lines(inventory, chosen, context.screen.width))


@app.command("check")
def check(names: Names = None, hosts: Inventory = None, json: Json = False) -> None:
    """Check the hosts against the inventory.

    Connects to each host, compares its hardware with the inventory, and shows who is using its GPUs. Changes nothing.
    Exits 15 if a host cannot be reached or differs from the inventory.
    """
    context = command_context(json=json, hosts=hosts)
    backend = open_hosts(context.environment)
    results = host_scanning.scan(backend, _chosen(backend.file(), names), context.catalog, None)
    if json:
        context.screen.document(scanned_json(results, {}))
    else:
        context.screen.wrapped(check_lines(results))
    if any(result.problem or result.differs for result in results):
        raise typer.Exit(UnfitError.exit_code)


@app.command("scan")
def scan(
    names: Names = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            "--trust", metavar="HOST=SHA256:...", help="Fingerprint that you have verified for this host. Repeatable."
        ),
    ] = None,
    hosts: Inventory = None,
    json: Json = False,
) -> None:
    """Query the hosts and fill in missing inventory data.

    Adds missing GPUs, drivers, cores, memory sizes and private addresses, and never overwrites existing values. Shows
    the fingerprint of each unknown host key, and pins the key only after you confirm it. Changes nothing on the hosts.
    """
    context = command_context(json=json, hosts=hosts)
    backend = open_hosts(context.environment)
    inventory = backend.file()
    chosen, trusted = _chosen(inventory, names), _trusting(context, inventory, trust or [])
    results = host_scanning.scan(backend, chosen, context.catalog, trusted)
    findings = {result.host.name: result.found for result in results}
    text, added = fill_scanned_fields(_text_of(inventory.path), findings)
    if added:
        _rewrite(inventory.path, text)
    if json:
        context.screen.document(scanned_json(results, added))
    else:
        context.screen.wrapped(scan_lines(results, added, inventory.path))
    if any(result.problem for result in results):
        raise typer.Exit(UnfitError.exit_code)


@app.command("prepare")
def prepare(
    names: Names = None,
    install: Annotated[
        list[str] | None,
        typer.Option(
            "--install",
            metavar="COMPONENT",
            help="Component to install: python3-venv, docker or container-toolkit. Repeatable.",
        ),
    ] = None,
    yes: Yes = False,
    hosts: Inventory = None,
    json: Json = False,
) -> None:
    """Show which components the hosts lack, and install them.

    Installs only the components that you list with --install, and asks for confirmation first.
    """
    context = command_context(json=json, hosts=hosts)
    backend = open_hosts(context.environment)
    results = find_missing_components(backend, _chosen(backend.file(), names), context.catalog)
    planned = plan_install_steps(results, install or [])
    if not json:
        context.screen.lines(step_lines(planned) if install else missing_component_lines(results))
    if planned:
        context.prompts.confirm("Run these commands?", yes=yes)
        run_install_steps(backend, planned, context.screen.emit)
    if json:
        context.screen.document(prepared_json(results, planned))


def _text_of(path: Path) -> str:
    try:
        return read_text(path, SETTINGS_BYTES)
    except OSError as err:
        raise UsageError(f"cannot read {path}: {err.strerror}", hint="choose another inventory: --hosts FILE") from err


def _rewrite(path: Path, text: str) -> None:
    """Replace the text of the inventory file and keep its permissions."""
    try:
        write_for_user(path, text.encode())
    except OSError as err:
        raise StateError(
            f"cannot write {path}: {err.strerror}", hint="make the file writable, then run `cloudgpu hosts scan` again"
        ) from err


def _chosen(inventory: HostsFile, names: list[str] | None) -> list[OwnHost]:
    for name in names or []:
        if name not in inventory.by_name:
            message = f"there is no host {name} in {inventory.path.name}{suggestion(name, inventory.by_name)}"
            raise UsageError(message, hint="list the hosts: cloudgpu hosts list")
    return [inventory.by_name[name] for name in dict.fromkeys(names)] if names else list(inventory.hosts)


def _trusting(context: CliContext, inventory: HostsFile, pairs: list[str]) -> Trust:
    known: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, fingerprint = pair.partition("=")
        if not equals or name not in inventory.by_name or not fingerprint.startswith("SHA256:"):
            raise UsageError(
                f"--trust {pair}: expected HOST=SHA256:...",
                hint="to see the fingerprint, run `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the host",
            )
        known.setdefault(name, []).append(fingerprint)

    def trust(host: OwnHost, key: ShownKey) -> bool:
        if host.name in known:
            if any(same_fingerprint(fingerprint, key.fingerprint) for fingerprint in known[host.name]):
                return True
            message = f"{host.name} presented the host key {key.fingerprint}, not {' or '.join(known[host.name])}"
            hint = "check whether another host responds at this address; cloudgpu did not log in to the host"
            raise HostKeyError(message, expected=known[host.name], got=key.fingerprint, hint=hint)
        where = f"{host.user}@{host.address} port {host.port}"
        context.screen.remark(f"{host.name} ({where}) presented the {key.kind} key {key.fingerprint}")
        # The path needs no quoting: it is either a constant file name or a pattern that the shell must expand.
        context.screen.remark(
            f"to verify it, run `ssh-keygen -lf /etc/ssh/{_FILES.get(key.kind, 'ssh_host_*.pub')}` on the host"
        )
        return context.prompts.ask(
            f"Is this the key of {host.name}?",
            hint=f"verify the fingerprint on the host, then add {command('--trust', f'{host.name}=...')}",
        )

    return trust
