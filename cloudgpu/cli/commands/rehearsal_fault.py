"""`cloudgpu rehearsal fault apply | list | show | clear | rules`: faults of the simulated AWS."""

from typing import Annotated

import typer

from cloudgpu.backends.quota_headroom import QuotaHeadroom
from cloudgpu.backends.rehearsal import start_rehearsal
from cloudgpu.cli.commands import rehearsal_conditions
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json
from cloudgpu.cli.render.fault import active_fault_lines, library_json, library_lines, script_json, script_lines
from cloudgpu.errors import UsageError
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.faults import scripts

app = typer.Typer(help="Apply faults to the simulated AWS.", no_args_is_help=True, rich_markup_mode=None)

Names = Annotated[
    list[str], typer.Argument(metavar="NAME|FILE...", help="Names from the fault library, or YAML files.")
]
Name = Annotated[str, typer.Argument(metavar="NAME|FILE", help="Name from the fault library, or a YAML file.")]
Given = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of the fault. Repeatable.")
]


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


app.command("rules")(rehearsal_conditions.faults)
