"""`cloudgpu hosts`: manage the inventory of self-managed hosts."""

from pathlib import Path
from typing import Annotated

import typer

from cloudgpu.backends.factory import open_hosts
from cloudgpu.backends.hosts import scan as host_scanning
from cloudgpu.backends.hosts.scan import Trust, find_missing_components, plan_install_steps, run_install_steps
from cloudgpu.cli import completion
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.options.shared import Json, Yes
from cloudgpu.cli.render.hosts import (
    check_lines,
    inventory_json,
    inventory_lines,
    missing_component_lines,
    prepared_json,
    scan_lines,
    scanned_json,
    step_lines,
)
from cloudgpu.errors import HostKeyError, StateError, UnfitError, UsageError
from cloudgpu.files import SETTINGS_BYTES, read_text, write_for_user
from cloudgpu.hosts.host import HostsFile, OwnHost
from cloudgpu.hosts.loading import fill_scanned_fields
from cloudgpu.recipe.problem import suggestion
from cloudgpu.ssh.host_key import ShownKey
from cloudgpu.ssh.keys import same_fingerprint
from cloudgpu.text import command

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
        run_install_steps(backend, planned, context.emit)
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


_FILES = {"ssh-ed25519": "ssh_host_ed25519_key.pub", "ssh-rsa": "ssh_host_rsa_key.pub"}
