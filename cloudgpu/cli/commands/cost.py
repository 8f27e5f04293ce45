"""`cloudgpu cost`: what was spent, by whom, on what. Simulated money is never added to real money."""

from typing import Annotated, Literal

import typer

from cloudgpu.cli.commands.options import Json

By = Literal["user", "team", "run", "recipe", "cluster"]


def cost(
    by: Annotated[By, typer.Option("--by", help="What the rows stand for.")] = "run",
    since: Annotated[str | None, typer.Option("--since", help="A date (2026-11-01) or an age (7d, 12h).")] = None,
    json: Json = False,
) -> None:
    """Show what was spent, by whom and on what.

    Reads the ledger; asks no cloud. Simulated money is marked and never added to real money. Exits 13 when the ledger
    lacks something that the records of this machine say was launched.
    """
    from cloudgpu.backends.missing_rows import gap_error
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.cli.render.cost import read_since, report_json, report_lines

    wiring = wire(json=json)
    now = wiring.clock.now()
    report = wiring.ledger.report(by=by, since=read_since(since, now), now=now)
    gaps = wiring.billing.gaps()
    if not json:
        wiring.screen.lines(report_lines(report, by))
    if gaps:
        failure = gap_error(gaps)
        failure.partial_result = report_json(report, by)
        raise failure
    if json:
        wiring.screen.document(report_json(report, by))
