"""`cloudgpu cancel`: cancel a run without deleting its cluster."""

from cloudgpu.cli.commands.options import Json, RunName
from cloudgpu.text import command


def cancel(run: RunName = "", json: Json = False) -> None:
    """Cancel a run and keep its cluster running."""
    from cloudgpu.app.runs.attach import found_run
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.cli.terminal.interruption import tell_what_runs, told_when_interrupted

    wiring = wire(json=json)
    record = found_run(wiring.records, run)
    tell_what_runs(wiring.records, record.cluster)
    again = f"the run may still be running; to continue: {command('cloudgpu', 'cancel', record.run_id)}"
    with told_when_interrupted(wiring.screen, again):
        ended = wiring.watching(record).cancel(record.run_id)
    if json:
        wiring.screen.document({"run_id": ended.run_id, "state": ended.state, "cluster": ended.cluster})
        return
    down = command("cloudgpu", "down", ended.cluster)
    wiring.screen.line(f"run {ended.run_id} is {ended.state}; to delete its cluster: {down}")
