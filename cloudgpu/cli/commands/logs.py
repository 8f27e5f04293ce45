"""`cloudgpu logs`: show the output of a run's ranks, stored or live."""

from typing import Annotated

import typer

from cloudgpu.app.runs.attach import explain_missing_lines, find_run, read_stored_lines
from cloudgpu.cli.commands.options import RunName, integer_parser
from cloudgpu.cli.context.wiring import wire
from cloudgpu.cli.render.run import report_final_state
from cloudgpu.cli.terminal.interruption import print_on_interrupt, reattach_lines
from cloudgpu.cli.terminal.still_running import report_clusters_on_signal
from cloudgpu.run.progress import RankLine
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
    wiring = wire(quits=True)
    record = find_run(wiring.records, run)
    shown = 0
    for shown, (line_rank, line) in enumerate(read_stored_lines(wiring.home, record, rank), 1):  # noqa: B007
        wiring.emit(RankLine(line_rank, line))
    if not shown and not follow:
        wiring.screen.remark(explain_missing_lines(record))
    if record.state != "running":
        return
    if not follow:
        wiring.screen.hint(
            f"the run is still running; to follow it: {command('cloudgpu', 'logs', '-f', record.run_id)}"
        )
        return
    report_clusters_on_signal(wiring.records, record.cluster)
    with print_on_interrupt(wiring.screen, *reattach_lines(record.run_id)):
        followed = wiring.watching(record, only_rank=rank).logs(record.run_id)
    raise typer.Exit(report_final_state(followed, wiring.screen))
