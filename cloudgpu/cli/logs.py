"""`cloudgpu logs`: what the ranks wrote, from this machine or live."""

from typing import Annotated

import typer

from cloudgpu.cli.options import RunName


def logs(
    run: RunName = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", help="Only this rank.")] = None,
) -> None:
    """Show the ranks' lines; `-f` re-attaches to a live run at the byte where this machine's copy ends."""
    from cloudgpu.app.watching import found_run, stored_lines
    from cloudgpu.cli.show_run import followed_code
    from cloudgpu.cli.wiring import wire
    from cloudgpu.run.progress import RankLine

    wiring = wire()
    record = found_run(wiring.records, run)
    for one, line in stored_lines(wiring.home, record, rank):
        wiring.say(RankLine(one, line))
    if not follow or record.state != "running":
        return
    followed = wiring.watching(record, only_rank=rank).logs(record.run_id)
    raise typer.Exit(followed_code(followed, wiring.screen))
