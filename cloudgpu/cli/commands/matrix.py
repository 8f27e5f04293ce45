"""`cloudgpu matrix`: show the results of run matrices, which `train --matrix` creates, and their plans, as text."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from cloudgpu.app.matrix.outcome import MatrixOutcome, RowOutcome, matrix_outcome
from cloudgpu.app.matrix.planner import MatrixPlan, MatrixProgress
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.options import Json
from cloudgpu.cli.render.error import damaged_line
from cloudgpu.cli.terminal.number_format import age, duration, format_time, money, relative_time
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.errors import RemoteCommandError, TeardownError, UsageError
from cloudgpu.files import write_for_user
from cloudgpu.recipe.field_types import DurationS
from cloudgpu.run.metrics import Measured
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.run_records import MatrixRecord, MatrixRecords
from cloudgpu.text import command, plural

_INTERRUPTED = 130
_BEST = " *"
_SPARE = 1.2
_LIST = (
    Column("matrix"),
    Column("recipe", priority=1),
    Column("done"),
    Column("started", priority=3, narrow="hide"),
    Column(label="started"),
    Column("values", priority=2, narrow="wrap"),
)
app = typer.Typer(
    help="""Show the results of run matrices.

    A matrix runs a recipe with every combination of the given parameter values, one run at a time on one cluster:
    `cloudgpu train RECIPE --matrix NAME=VALUE,VALUE`.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)
MatrixName = Annotated[str, typer.Argument(metavar="[MATRIX]", help="Matrix name. Default: the latest matrix.")]


def exit_code(outcome: MatrixOutcome) -> int:
    """Return the exit code of a matrix.

    The code is 6 if the cluster could not be deleted, else 130 after Ctrl-C, else 5 unless every combination has a
    result and its outputs were downloaded.
    """
    if outcome.unended:
        return TeardownError.exit_code
    if outcome.interrupted:
        return _INTERRUPTED
    succeeded = outcome.complete and not (outcome.unfetched or outcome.lost)
    return 0 if succeeded else RemoteCommandError.exit_code


def plan_lines(
    plan: MatrixPlan, start: MatrixProgress, cluster: ClusterRecord | None, now: datetime, width: int | None = None
) -> list[str]:
    """Return the combinations, the maximum cost, the time per run, and any findings missing from the lead plan."""
    lines = [
        "",
        *_what_runs(plan, start),
        *_time(plan, start, cluster, now),
        *(
            f"{finding.severity}, {combinations}: {finding.message} [{finding.check}]"
            for combinations, finding in plan.further_findings
        ),
    ]
    return wrap_lines(lines, width)


def _what_runs(plan: MatrixPlan, start: MatrixProgress) -> Iterator[str]:
    yield f"matrix {start.record.name}: {plural(len(plan.runs), 'combination')}, one at a time on this cluster"
    changed = {run.combination.values for run in start.changed}
    missing = {run.combination.values for run in start.missing}
    for run in plan.runs:
        values = run.combination.values
        mark = "has a result" if values not in missing else "result from another version of the recipe; will run again"
        yield f"  {run.combination.label}{f'  ({mark})' if values in changed or values not in missing else ''}"


def _time(plan: MatrixPlan, start: MatrixProgress, cluster: ClusterRecord | None, now: datetime) -> Iterator[str]:
    count, lead = len(start.missing), plan.lead.plan
    left_s = lead.expiry_s if cluster is None else max(0.0, (cluster.lifecycle.expires_at - now).total_seconds())
    if cluster is None:
        worst = lead.worst_case_usd
        expiry = DurationS(lead.expiry_s)
        yield f"the whole matrix costs at most {worst} USD: one cluster, which expires after {expiry}"
    else:
        expires_at = cluster.lifecycle.expires_at
        yield f"cluster {cluster.name} expires at {format_time(expires_at)}, {relative_time(expires_at, now)}"
    if count:
        each = duration(left_s / count)
        yield f"{plural(count, 'run')} in {age(left_s)}: {each} for each run, including the launch of the nodes"
    needed_s, by = _needed(plan, start)
    if needed_s > left_s:
        runs = plural(count, "run")
        yield f"warning: {by} {runs} would take {duration(needed_s)}, but the cluster expires earlier [matrix]"
        yield f"    fix: {_more_time(needed_s, cluster)}; or run the same command again after the expiry"


def _needed(plan: MatrixPlan, start: MatrixProgress) -> tuple[float, str]:
    """Return the estimated duration of the missing runs in seconds (0 if unknown) and the basis of the estimate."""
    count = len(start.missing)
    if plan.expected_s is not None:
        return plan.expected_s * count / len(plan.runs), "at the reference rates"
    return (start.typical_s or 0.0) * count, "at the pace of this recipe's recent runs,"


def _more_time(needed_s: float, cluster: ClusterRecord | None) -> str:
    """Return the option or command that provides the needed time plus 20 percent, rounded up to whole minutes."""
    extension = DurationS(int(needed_s * _SPARE // 60 + 1) * 60)
    if cluster is None:
        return command("--set", f"budget.expiry={extension}")
    return command("cloudgpu", "extend", cluster.name, "--by", str(extension))


def outcome_lines(outcome: MatrixOutcome, width: int | None = None) -> list[str]:
    """Return the table of results, the reasons for missing results, the cost and the remaining resources."""
    table = _table(outcome).lines(width)
    return [
        "",
        _title(outcome),
        "",
        *table,
        "",
        *wrap_lines(list(_reasons(outcome)), width),
        *wrap_lines(list(_figures(outcome)), width),
    ]


def _title(outcome: MatrixOutcome) -> str:
    done = sum(row.has_result for row in outcome.rows)
    what = f"{done} of {plural(len(outcome.rows), 'combination')} have a result"
    return f"matrix {outcome.record.name}: {what}{' (simulated)' if outcome.record.simulated else ''}"


def _table(outcome: MatrixOutcome) -> Table:
    axes = [name for name, _ in outcome.record.axes]
    columns = [
        *(Column(name) for name in axes),
        Column("state"),
        *(Column(_heading(outcome, name), right=True, priority=1) for name in outcome.metrics),
        Column("took", right=True, priority=4, narrow="hide"),
        Column("cost", right=True, priority=3),
        Column("run", priority=2, whole=True),
    ]
    return Table(columns, [_cells(outcome, row) for row in outcome.rows], "  ")


def _heading(outcome: MatrixOutcome, name: str) -> str:
    units = {measured.metric.unit for row in outcome.rows for measured in row.measured if measured.name == name}
    unit = " / ".join(sorted(unit for unit in units if unit))
    return f"{name} [{unit}]" if unit else name


def _cells(outcome: MatrixOutcome, row: RowOutcome) -> list[str]:
    by_name = {measured.name: measured for measured in row.measured}
    figures = [_figure(by_name.get(name), best=name in row.best) for name in outcome.metrics]
    took = "" if row.seconds is None else duration(row.seconds)
    cost = money(row.usd) if row.run_id else ""
    values = [value for _, value in row.values]
    return [*values, row.state, *figures, took, cost, row.run_id]


def _figure(measured: Measured | None, *, best: bool) -> str:
    """Format a metric's value as `7850 (100%) *`, padded so that the values of all rows align."""
    if measured is None or measured.value is None:
        return "-  "
    share = "" if measured.share is None else f" ({measured.share:.0%})"
    return f"{measured.value:g}{share}{_BEST if best else '  '}"


def _reasons(outcome: MatrixOutcome) -> Iterator[str]:
    if any(row.best for row in outcome.rows):
        yield "* no other combination has a better value"
    if any(measured.share is not None for row in outcome.rows for measured in row.measured):
        yield "%  of the recipe's reference value"
    for row in outcome.rows:
        if row.reason and not row.has_result:
            yield f"{row.label}: {row.reason}"


def _figures(outcome: MatrixOutcome) -> Iterator[str]:
    yield f"cost     {_cost(outcome)}"
    yield f"table    {outcome.table}"
    if outcome.stopped:
        yield f"stopped  {outcome.stopped}; to run the missing combinations, run the same command again"
    elif not outcome.complete:
        yield "resume   to run the missing combinations, run the same command again"
    for label, lines in (("not downloaded", outcome.unfetched), ("lost", outcome.lost)):
        yield from (f"{label:<8} {line}" for line in lines)
    if outcome.unended:
        yield f"not deleted  {outcome.unended}"
    for line in outcome.left:
        yield f"left     {line}"


def _cost(outcome: MatrixOutcome) -> str:
    runs = money(sum((row.usd for row in outcome.rows), Decimal(0)))
    text = f"{money(outcome.usd)}, of which {runs} for these runs"
    return f"{text} (simulated; nothing was charged)" if outcome.record.simulated else text


def list_lines(
    outcomes: Sequence[MatrixOutcome],
    damaged: Sequence[str],
    now: datetime,
    reasons: Mapping[str, str] | None = None,
    width: int | None = None,
) -> list[str]:
    """Return one line per matrix, oldest first, then one line per matrix whose record cannot be read."""
    if not outcomes and not damaged:
        return ["no matrix has been run"]
    table = Table(_LIST, [_listed(outcome, now) for outcome in outcomes])
    return [*table.lines(width), *wrap_lines([damaged_line(name, reasons or {}) for name in damaged], width)]


def _listed(outcome: MatrixOutcome, now: datetime) -> tuple[str, ...]:
    record: MatrixRecord = outcome.record
    done = f"{sum(row.has_result for row in outcome.rows)} of {len(outcome.rows)}"
    values = " ".join(f"{name}={','.join(values)}" for name, values in record.axes)
    started_at = record.created_at
    return record.name, record.recipe, done, format_time(started_at), relative_time(started_at, now), values


@app.command("list")
def list_matrices(json: Json = False) -> None:
    """List the matrices recorded on this machine.

    For each matrix, shows the recipe, parameter values, start time and number of combinations with a result.
    """
    context = command_context(json=json, quits=True)
    records = MatrixRecords(context.home)
    known, damaged = records.all()
    outcomes = [_outcome(context, record) for record in known]
    if json:
        context.screen.document({"matrices": [outcome.as_json() for outcome in outcomes], "damaged": damaged})
    else:
        reasons = {name: records.damage(name) for name in damaged}
        screen = context.screen
        screen.lines(list_lines(outcomes, damaged, context.clock.now(), reasons, screen.width))


@app.command("show")
def show(name: MatrixName = "", json: Json = False) -> None:
    """Show the results of a matrix as a table.

    Lists every combination with its metrics, duration and cost.
    """
    context = command_context(json=json, quits=True)
    outcome = _outcome(context, MatrixRecords(context.home).found(name))
    if json:
        context.screen.document(outcome.as_json())
    else:
        context.screen.lines(outcome_lines(outcome, context.screen.width))


@app.command("csv")
def csv(
    name: MatrixName = "",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
) -> None:
    """Print the results of a matrix as CSV."""
    context = command_context(quits=True)
    text = _outcome(context, MatrixRecords(context.home).found(name)).as_csv()
    if out is None:
        context.screen.raw(text)
    else:
        write_table(out, text)
        context.screen.line(f"table written to {out}")


def write_table(path: Path, text: str) -> None:
    """Write a results table to a file that the user chose."""
    try:
        write_for_user(path, text.encode())
    except OSError as err:
        message = f"cannot write {path}: {err.strerror}"
        raise UsageError(message, hint="choose a file in an existing folder") from err


def _outcome(context: CliContext, record: MatrixRecord) -> MatrixOutcome:
    table = str(context.home.matrix(record.name).table)
    return matrix_outcome(record, context.records, context.ledger, context.clock.now(), table)
