"""`cloudgpu cancel`: end a run, not its cluster."""

from cloudgpu.cli.options import Json, RunName


def cancel(run: RunName = "", json: Json = False) -> None:
    """End a run on all its nodes and leave its cluster up."""
    from cloudgpu.app.watching import found_run
    from cloudgpu.cli.wiring import wire

    wiring = wire(json=json)
    record = found_run(wiring.records, run)
    ended = wiring.watching(record).cancel(record.run_id)
    if json:
        wiring.screen.document({"run_id": ended.run_id, "state": ended.state, "cluster": ended.cluster})
    else:
        wiring.screen.line(f"run {ended.run_id}: {ended.state}")
