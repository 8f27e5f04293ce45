"""`cloudgpu rehearsal fault apply | list | show | clear | rules`: faults of the simulated AWS."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from cloudgpu.backends.quota_headroom import QuotaHeadroom
from cloudgpu.backends.rehearsal import start_rehearsal
from cloudgpu.cli.commands import rehearsal
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options import Json
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.errors import UsageError
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.faults import scripts
from cloudgpu.rehearsal.faults.scripts import FaultScript
from cloudgpu.text import command

_COLUMNS = (Column(), Column(whole=True), Column(narrow="wrap", least=30))
_PARTS = ("rules", "capacity", "quotas", "cloud", "nodes")
app = typer.Typer(help="Apply faults to the simulated AWS.", no_args_is_help=True, rich_markup_mode=None)
Names = Annotated[
    list[str], typer.Argument(metavar="NAME|FILE...", help="Names from the fault library, or YAML files.")
]
Name = Annotated[str, typer.Argument(metavar="NAME|FILE", help="Name from the fault library, or a YAML file.")]
Given = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of the fault. Repeatable.")
]


def library_lines(library: Sequence[FaultScript], applied: Sequence[str], width: int | None = None) -> list[str]:
    """Return one line per fault, with an asterisk for active faults, and a final line that lists the active faults."""
    rows = [("*" if script.name in applied else "", script.name, script.description) for script in library]
    now = f"active (*): {', '.join(applied)}" if applied else "active: none"
    return [*Table(_COLUMNS, rows).lines(width), *wrap_lines([now], width)]


def library_json(library: Sequence[FaultScript], applied: Sequence[str]) -> dict[str, Any]:
    """Return the documented output of `rehearsal fault list --json`."""
    rows = [
        {"name": script.name, "description": script.description, "parameters": dict(script.parameters)}
        for script in library
    ]
    return {"simulated": True, "faults": rows, "applied": list(applied)}


def script_lines(script: FaultScript) -> list[str]:
    """Return a fault's description, its parameters with defaults, and its rules, limits and conditions as JSON."""
    lines = [f"{script.name}: {script.description}".rstrip(": ")]
    lines += [f"  {command('--set', f'{name}={value}')}" for name, value in script.parameters.items()]
    return [*lines, *_part_lines(script.parts)]


def script_json(script: FaultScript) -> dict[str, Any]:
    """Return the documented output of `rehearsal fault show --json`."""
    return {
        "simulated": True,
        "name": script.name,
        "description": script.description,
        "parameters": dict(script.parameters),
        "parts": dict(script.parts),
    }


def active_fault_lines(now: Mapping[str, Any]) -> list[str]:
    """Return the names of the active faults, and the rules, limits and conditions in effect as JSON."""
    if not any(now[part] for part in _PARTS):
        return ["simulated faults: none"]
    return [f"simulated faults: {', '.join(now['names']) or 'unnamed'}", *_part_lines(now)]


def _part_lines(parts: Mapping[str, Any]) -> list[str]:
    lines = []
    for name in _PARTS:
        part = parts.get(name)
        if not part:
            continue
        rows = part if isinstance(part, list) else [{key: value} for key, value in part.items()]
        lines += [f"  {name}:", *(f"    {json.dumps(row)}" for row in rows)]
    return lines


@app.command("apply")
def apply(names: Names, given: Given = None, json: Json = False) -> None:
    """Apply faults to the simulated AWS.

    Most faults take effect immediately; boot faults, such as `driver-late`, affect a node only when it next boots.
    Replaces all previously applied faults, including limits on capacity and quotas. Starts the rehearsal cloud if
    necessary.
    """
    selected = [scripts.find_script(name) for name in names]
    combined = scripts.combine_scripts(selected, read_given(given or []))
    context = command_context(json=json)
    now = client.put_script(
        start_rehearsal(context.environment), {"names": [script.name for script in selected], **combined}
    )
    QuotaHeadroom(context.home, context.clock).forget("rehearsal")
    if json:
        context.screen.document({"simulated": True, **now})
    else:
        # The server's answer lacks the parameters of node faults, such as `seconds`.
        context.screen.wrapped(active_fault_lines({**now, **combined}))


@app.command("list")
def list_all(json: Json = False) -> None:
    """List the fault library and the faults in effect.

    Does not start the rehearsal cloud.
    """
    context = command_context(json=json)
    cloud = client.find_running(context.home)
    applied = list(client.script(cloud)["names"]) if cloud else []
    library = list(scripts.builtin_scripts().values())
    if json:
        context.screen.document(library_json(library, applied))
    else:
        context.screen.lines(library_lines(library, applied, context.screen.width))


@app.command("show")
def show(name: Name, json: Json = False) -> None:
    """Show a fault's parameters, rules and limits."""
    script = scripts.find_script(name)
    context = command_context(json=json)
    if json:
        context.screen.document(script_json(script))
    else:
        context.screen.wrapped(script_lines(script))


@app.command("clear")
def clear(json: Json = False) -> None:
    """Clear all faults and all limits on capacity and quotas.

    Nodes that a fault has already affected are not repaired. Starts the rehearsal cloud if necessary.
    """
    context = command_context(json=json)
    now = client.put_script(start_rehearsal(context.environment), {})
    QuotaHeadroom(context.home, context.clock).forget("rehearsal")
    if json:
        context.screen.document({"simulated": True, **now})
    else:
        context.screen.wrapped(active_fault_lines(now))


def read_given(rows: list[str]) -> dict[str, str]:
    """Parse assignments such as `zone=us-east-1d` into a dictionary."""
    for row in rows:
        if not row.partition("=")[0] or "=" not in row:
            message = f"{row!r} does not have the form NAME=VALUE"
            raise UsageError(message, hint="for example: --set zone=us-east-1d")
    return {name: value for name, _, value in (row.partition("=") for row in rows)}


app.command("rules")(rehearsal.faults)
