"""`cloudgpu attach`: reattach to a run and finish it as `train` would have."""

from typing import Annotated

import typer

from cloudgpu.cli.commands.options import Json, RunName


def attach(
    run: RunName = "",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the cluster running after the run.")] = False,
    json: Json = False,
) -> None:
    """Reattach to a run and finish it.

    Follows the run until it finishes, downloads its outputs, deletes the cluster if the run created it, and prints the
    cost. Ctrl-C detaches and leaves the run running.
    """
    from cloudgpu.app.runs.attach import found_run
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.cli.render.run import exit_code, show_outcome
    from cloudgpu.cli.terminal.interruption import going_on, tell_what_runs, told_when_interrupted

    wiring = wire(json=json)
    record = found_run(wiring.records, run)
    tell_what_runs(wiring.records, record.cluster)
    with told_when_interrupted(wiring.screen, *going_on(record.run_id)):
        outcome = wiring.watching(record).attach(record.run_id, keep=keep)
    if json:
        wiring.screen.document(outcome.as_json())
    else:
        show_outcome(outcome, wiring.screen)
    raise typer.Exit(exit_code(outcome))
