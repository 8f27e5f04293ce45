"""`cloudgpu cancel`: cancel a run without deleting its cluster."""

from cloudgpu.app.runs.attach import find_run
from cloudgpu.cli.commands.options import Json, RunName
from cloudgpu.cli.context.wiring import wire
from cloudgpu.cli.terminal.interruption import print_on_interrupt
from cloudgpu.cli.terminal.still_running import report_clusters_on_signal
from cloudgpu.text import command


def cancel(run: RunName = "", json: Json = False) -> None:
    """Cancel a run and keep its cluster running."""
    wiring = wire(json=json)
    record = find_run(wiring.records, run)
    report_clusters_on_signal(wiring.records, record.cluster)
    again = f"the run may still be running; to cancel it: {command('cloudgpu', 'cancel', record.run_id)}"
    with print_on_interrupt(wiring.screen, again):
        ended = wiring.watching(record).cancel(record.run_id)
    if json:
        wiring.screen.document({"run_id": ended.run_id, "state": ended.state, "cluster": ended.cluster})
        return
    down = command("cloudgpu", "down", ended.cluster)
    wiring.screen.line(f"run {ended.run_id} is {ended.state}; to delete its cluster: {down}")
