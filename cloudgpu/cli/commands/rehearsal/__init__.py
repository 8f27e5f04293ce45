"""`cloudgpu rehearsal`: manage the simulated AWS on this machine."""

from typing import Annotated

import typer

from cloudgpu.backends.rehearsal import start_rehearsal
from cloudgpu.cli.commands.rehearsal import conditions
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.lazy import LazyCommand, LazyGroup
from cloudgpu.cli.options.shared import Json, Yes
from cloudgpu.cli.render.rehearsal import env_lines, status_json, status_lines
from cloudgpu.errors import LedgerError
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.layout import ended_instances
from cloudgpu.text import command


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


app.command("capacity")(conditions.capacity)
app.command("quota")(conditions.quota)
app.command("prices")(conditions.prices)
app.command("faults", hidden=True)(conditions.faults)  # former name of `fault rules`
app.command("advance")(conditions.advance)
