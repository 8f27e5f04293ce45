"""`cloudgpu cost`: report costs from the ledger, with separate totals for real and simulated costs."""

from typing import Annotated, Literal

import typer

from cloudgpu.backends.billing.missing_rows import gap_error
from cloudgpu.cli.commands.options import Json
from cloudgpu.cli.context import command_context
from cloudgpu.cli.render.cost import read_since, report_json, report_lines

By = Literal["user", "team", "run", "recipe", "cluster"]


def cost(
    by: Annotated[By, typer.Option("--by", help="Key to group costs by.")] = "run",
    since: Annotated[str | None, typer.Option("--since", help="Start date (2026-11-01) or age (7d, 12h).")] = None,
    json: Json = False,
) -> None:
    """Show what was spent, by whom and on what.

    Reads only the ledger and makes no cloud calls. Simulated costs are marked and never added to real costs. Exits 13
    if this machine's records contain an instance or storage that is missing from the ledger.
    """
    context = command_context(json=json)
    now = context.clock.now()
    report = context.cost_report(by=by, since=read_since(since, now), now=now)
    gaps = context.missing_rows()
    if not json:
        context.screen.lines(report_lines(report, by))
    if gaps:
        failure = gap_error(gaps)
        failure.partial_result = report_json(report, by)
        raise failure
    if json:
        context.screen.document(report_json(report, by))
