"""`cloudgpu attach`: come back to a run and finish it as its `train` would have."""

from typing import Annotated

import typer

from cloudgpu.cli.options import Json, RunName


def attach(
    run: RunName = "",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster up when the run ended.")] = False,
    json: Json = False,
) -> None:
    """Follow a run to its end, bring its outputs back, end the cluster that it made, print the bill."""
    from cloudgpu.app.watching import found_run
    from cloudgpu.cli.show_run import exit_code, outcome_lines
    from cloudgpu.cli.wiring import wire

    wiring = wire(json=json)
    record = found_run(wiring.records, run)
    outcome = wiring.watching(record).attach(record.run_id, keep=keep)
    if json:
        wiring.screen.document(outcome.as_json())
    else:
        wiring.screen.lines(outcome_lines(outcome))
    raise typer.Exit(exit_code(outcome))
