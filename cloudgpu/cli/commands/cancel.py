"""`cloudgpu cancel`: cancel a run without deleting its cluster."""

from cloudgpu.app.runs.attach import RunWatcher, find_run
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json, RunName, Verbose
from cloudgpu.cli.terminal.interruption import print_on_interrupt
from cloudgpu.cli.terminal.still_running import report_clusters_on_signal
from cloudgpu.targets import as_target
from cloudgpu.text import command


def cancel(run: RunName = "", verbose: Verbose = False, json: Json = False) -> None:
    """Cancel a run and keep its cluster running.

    Does not download the outputs. They stay on the nodes until the cluster is deleted.
    """
    context = command_context(json=json, verbose=verbose)
    record = find_run(context.records, run)
    report_clusters_on_signal(context.records, record.cluster)
    again = f"the run may still be running; to cancel it: {command('cloudgpu', 'cancel', record.run_id)}"
    with print_on_interrupt(context.screen, again):
        ended = RunWatcher(context.context(as_target(record.target))).cancel(record.run_id)
    if json:
        context.screen.document({"run_id": ended.run_id, "state": ended.state, "cluster": ended.cluster})
        return
    down = command("cloudgpu", "down", ended.cluster)
    context.screen.line(f"run {ended.run_id} is {ended.state}; to delete its cluster: {down}")
    context.screen.hint(f"to see its output: {command('cloudgpu', 'logs', ended.run_id)}")
