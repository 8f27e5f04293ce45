"""`cloudgpu attach`: reattach to a run and finish it as `train` would have."""

from typing import Annotated

import typer

from cloudgpu.app.runs.attach import find_run
from cloudgpu.cli.commands.options import Json, RunName
from cloudgpu.cli.context.wiring import wire
from cloudgpu.cli.render.run import exit_code, show_outcome
from cloudgpu.cli.terminal.interruption import print_on_interrupt, reattach_lines
from cloudgpu.cli.terminal.still_running import report_clusters_on_signal


def attach(
    run: RunName = "",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the cluster running after the run.")] = False,
    json: Json = False,
) -> None:
    """Reattach to a run and finish it.

    Follows the run until it finishes, downloads its outputs, deletes the cluster if the run created it, and prints the
    cost. Ctrl-C detaches and leaves the run running.
    """
    wiring = wire(json=json)
    record = find_run(wiring.records, run)
    report_clusters_on_signal(wiring.records, record.cluster)
    with print_on_interrupt(wiring.screen, *reattach_lines(record.run_id)):
        outcome = wiring.watching(record).attach(record.run_id, keep=keep)
    if json:
        wiring.screen.document(outcome.as_json())
    else:
        show_outcome(outcome, wiring.screen)
    raise typer.Exit(exit_code(outcome))
