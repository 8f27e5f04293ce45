"""`cloudgpu logs`: show the output of a run's ranks, stored or live."""

from dataclasses import replace
from typing import Annotated

import typer

from cloudgpu.app.runs.attach import RunWatcher, explain_missing_lines, find_run, read_stored_lines
from cloudgpu.backends.events import Emit, ProgressEvent
from cloudgpu.cli.commands.options import RunName, integer_parser
from cloudgpu.cli.context import command_context
from cloudgpu.cli.render.run import report_final_state
from cloudgpu.cli.terminal.interruption import print_on_interrupt, reattach_lines
from cloudgpu.cli.terminal.still_running import report_clusters_on_signal
from cloudgpu.run.progress import RankLine
from cloudgpu.targets import as_target
from cloudgpu.text import command


def logs(
    run: RunName = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the run finishes.")] = False,
    rank: Annotated[
        int | None, typer.Option("--rank", parser=integer_parser(0, 64_000), help="Show only the output of this rank.")
    ] = None,
) -> None:
    """Show the output of a run's ranks.

    Prints the copy on this machine, one rank after another. With -f, continues with live output from the end of that
    copy; no line is lost or repeated. Does not finish the run: to download outputs and delete the cluster, use
    `cloudgpu attach`.
    """
    context = command_context(quits=True)
    record = find_run(context.records, run)
    shown = 0
    for shown, (line_rank, line) in enumerate(read_stored_lines(context.home, record, rank), 1):  # noqa: B007
        context.emit(RankLine(line_rank, line))
    if not shown and not follow:
        context.screen.remark(explain_missing_lines(record))
    if record.state != "running":
        return
    if not follow:
        context.screen.hint(
            f"the run is still running; to follow it: {command('cloudgpu', 'logs', '-f', record.run_id)}"
        )
        return
    report_clusters_on_signal(context.records, record.cluster)
    with print_on_interrupt(context.screen, *reattach_lines(record.run_id)):
        runs = replace(context.context(as_target(record.target)), emit=_emit_rank(context.emit, rank))
        followed = RunWatcher(runs).logs(record.run_id)
    raise typer.Exit(report_final_state(followed, context.screen))


def _emit_rank(emit: Emit, rank: int | None) -> Emit:
    """Return a function that shows progress events, but of the ranks' output only that of one rank if it is given."""

    def emit_rank(event: ProgressEvent) -> None:
        if rank is None or not isinstance(event, RankLine) or event.rank == rank:
            emit(event)

    return emit_rank
