"""`cloudgpu matrix`: show the results of run matrices, which `train --matrix` creates."""

from pathlib import Path
from typing import Annotated

import typer

from cloudgpu.app.matrix.outcome import MatrixOutcome, matrix_outcome
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.options.shared import Json
from cloudgpu.cli.render.matrix import list_lines, outcome_lines
from cloudgpu.errors import UsageError
from cloudgpu.files import write_for_user
from cloudgpu.state.run_records import MatrixRecord, MatrixRecords

app = typer.Typer(
    help="""Show the results of run matrices.

    A matrix runs a recipe with every combination of the given parameter values, one run at a time on one cluster:
    `cloudgpu train RECIPE --matrix NAME=VALUE,VALUE`.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)
MatrixName = Annotated[str, typer.Argument(metavar="[MATRIX]", help="Matrix name. Default: the latest matrix.")]


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
