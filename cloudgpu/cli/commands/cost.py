"""`cloudgpu cost`: report costs from the ledger, with separate totals for real and simulated costs."""

from dataclasses import replace
from typing import Annotated

import typer

from cloudgpu.backends.billing.missing_rows import gap_error
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.options.shared import Json, integer_parser
from cloudgpu.cli.render.cost import ROWS_SHOWN, read_period, report_csv, report_json, report_lines
from cloudgpu.errors import UsageError
from cloudgpu.ledger.pieces import NO_VALUE
from cloudgpu.ledger.report import By, ReportQuery


def cost(
    by: Annotated[By, typer.Option("--by", help="Group costs by this key. Days, weeks and months are in UTC.")] = "run",
    since: Annotated[str | None, typer.Option("--since", help="Start date (2026-11-01) or age (7d, 12h).")] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Last date (2026-11-30, inclusive), time, or age (7d, 12h).")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            parser=integer_parser(),
            help="Show at most this many rows (0: all): the latest ones if grouped by day, week or month, otherwise "
            "the most expensive ones. Default: 100, or all with --json and --csv.",
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
    json: Json = False,
) -> None:
    """Show what was spent, when, by whom and on what.

    Reads the ledger and makes no cloud calls. Simulated costs are marked and never added to real costs. Exits 13 if
    this machine's records contain an instance or storage that is missing from the ledger.
    """
    if csv and json:
        raise UsageError("--csv and --json are mutually exclusive", hint="omit one of them")
    context = command_context(json=json)
    now = context.clock.now()
    shown = (None if json or csv else ROWS_SHOWN) if limit is None else limit or None
    start, end = read_period(since, until, now)
    query = ReportQuery(by, now, start, end, shown)
    report = context.cost_report(query if by != "gpu" else _with_gpus(context, query))
    gaps = context.missing_rows()
    if report.rows or not gaps:  # with a lost ledger, an empty report would say that nothing was spent
        if csv:
            context.screen.raw(report_csv(report))
        elif not json:
            context.screen.lines(report_lines(report, context.screen.width))
    if gaps:
        failure = gap_error(gaps)
        failure.partial_result = report_json(report)
        raise failure
    if json:
        context.screen.document(report_json(report))


def _with_gpus(context: CliContext, query: ReportQuery) -> ReportQuery:
    """Return the query with a function that looks up GPUs in the catalog. Types of self-managed hosts name the GPU."""
    types = context.catalog.types

    def gpu_of(instance_type: str) -> str:
        known = types.get(instance_type)
        if known is not None:
            return known.gpu or NO_VALUE
        model, colon, _ = instance_type.partition(":")
        return model if colon else NO_VALUE

    return replace(query, gpu_of=gpu_of)
