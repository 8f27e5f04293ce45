"""`cloudgpu rehearsal`: the simulated AWS on this machine."""

from typing import Annotated

import typer

from cloudgpu.cli.commands import rehearsal_conditions, rehearsal_fault
from cloudgpu.cli.commands.options import Json, Yes

app = typer.Typer(help="The simulated AWS on this machine.", no_args_is_help=True, rich_markup_mode=None)


@app.command("start")
def start(json: Json = False) -> None:
    """Start this home's simulated cloud.

    One that runs already is left as it is. Commands that need one start it by themselves.
    """
    from cloudgpu.cli.context.wiring import wire

    wiring = wire(json=json)
    cloud = wiring.rehearsal()
    if json:
        wiring.screen.document({"endpoint": cloud.url, "region": cloud.region, "pid": cloud.pid})
    else:
        wiring.screen.line(
            f"rehearsal cloud (simulated AWS) at {cloud.url}, process {cloud.pid}; no real AWS is asked or charged"
        )


@app.command("status")
def status(json: Json = False) -> None:
    """Show the endpoint and its simulated nodes.

    For every node: instance, type, zone, state, cluster, address, port, user, host key.
    """
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.cli.render.rehearsal import status_json, status_lines
    from cloudgpu.rehearsal import client

    wiring = wire(json=json, needs_disk=False)
    found = client.status(wiring.home)
    if json:
        wiring.screen.document(status_json(found))
    else:
        wiring.screen.lines(status_lines(found, wiring.clock.now()))


@app.command("stop")
def stop(json: Json = False) -> None:
    """Stop it; its nodes end.

    What it recorded stays, so that `down` can still tell the truth.
    """
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.rehearsal import client

    wiring = wire(json=json, needs_disk=False)
    was_running = client.stop(wiring.home)
    if json:
        wiring.screen.document({"was_running": was_running})
    else:
        wiring.screen.line(
            "rehearsal cloud (simulated AWS) stopped" if was_running else "no rehearsal cloud was running"
        )


@app.command("reset")
def reset(yes: Yes = False, json: Json = False) -> None:
    """Delete this home's simulated cloud and begin anew.

    Ends its server and its nodes, and forgets everything simulated: resources, buckets, limits, the moved clock. Works
    also where its files are damaged. `cloudgpu down` clears what this home still records of clusters on it.
    """
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.rehearsal import resetting

    wiring = wire(json=json, needs_disk=False)
    wiring.questions.confirm("Delete the simulated cloud of this home, with everything in it?", yes=yes)
    existed = resetting.reset(wiring.home)
    if json:
        wiring.screen.document({"simulated": True, "existed": existed})
    else:
        wiring.screen.line("rehearsal cloud (simulated AWS) deleted" if existed else "there was no rehearsal cloud")


@app.command("env")
def env(
    pulumi: Annotated[
        bool, typer.Option("--pulumi", help="Also a PULUMI_HOME of its own, whose aws plugin is this cloud.")
    ] = False,
) -> None:
    """Print the variables with which any AWS client sees it.

    Made for `eval "$(cloudgpu rehearsal env)"`; the key in them works for this simulated cloud alone.
    """
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.rehearsal import client

    wiring = wire()
    lines = client.env_lines(wiring.rehearsal())
    if pulumi:
        from cloudgpu.backends.aws.engines import pulumi_lines

        lines += pulumi_lines(wiring.home)
    # For `eval`, so unchanged in a pipe: every value is quoted where the lines are made.
    wiring.screen.raw("".join(f"{line}\n" for line in lines))


app.command("capacity")(rehearsal_conditions.capacity)
app.command("quota")(rehearsal_conditions.quota)
app.command("prices")(rehearsal_conditions.prices)
app.command("faults")(rehearsal_conditions.faults)
app.add_typer(rehearsal_fault.app, name="fault")
app.command("advance")(rehearsal_conditions.advance)
