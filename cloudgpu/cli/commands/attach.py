"""`cloudgpu attach`: reattach to a run and finish the run as `train` would have."""

from typing import Annotated

import typer

from cloudgpu.app.runs.attach import RunWatcher, find_run
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json, RunName, Verbose
from cloudgpu.cli.render.run import exit_code, show_outcome
from cloudgpu.cli.terminal.interruption import print_on_interrupt, reattach_lines
from cloudgpu.cli.terminal.still_running import report_clusters_on_signal
from cloudgpu.targets import as_target


def attach(
    run: RunName = "",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the cluster running after the run.")] = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Reattach to a run, follow it to the end and clean up.

    Follows the run until it finishes, downloads its outputs, deletes the cluster if the run created it, and prints the
    cost. Ctrl-C detaches and leaves the run running.
    """
    context = command_context(json=json, verbose=verbose)
    record = find_run(context.records, run)
    report_clusters_on_signal(context.records, record.cluster)
    with print_on_interrupt(context.screen, *reattach_lines(record.run_id)):
        outcome = RunWatcher(context.context(as_target(record.target))).attach(record.run_id, keep=keep)
    if json:
        context.screen.document(outcome.as_json())
    else:
        show_outcome(outcome, context.screen)
    raise typer.Exit(exit_code(outcome))
