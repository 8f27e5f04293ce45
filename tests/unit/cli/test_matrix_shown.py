"""Exact matrix output: table, CSV, list and exit code."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from cloudgpu.app.matrix.outcome import MatrixOutcome, RowOutcome
from cloudgpu.cli.commands.matrix import exit_code, list_lines, outcome_lines
from cloudgpu.recipe.schema import Metric
from cloudgpu.run.metrics import Measured
from cloudgpu.state.run_records import MatrixRecord, MatrixRow

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
PAGE = Path(__file__).parents[3] / "docs/reference/json.md"
REFERENCE = {"value": 8000, "on": "8 x V100", "source": "nobody"}
SPEED = Metric.model_validate({"pattern": "(?P<value>.)", "unit": "img/s", "better": "higher", "reference": REFERENCE})
LOSS = Metric.model_validate({"pattern": "(?P<value>.)", "better": "lower"})

TABLE = """
matrix mx-3f09ab: 2 of 4 combinations have a result

  kvstore     compression  state      images_per_s [img/s]    loss        took   cost  run
  dist_sync   none         succeeded          7850 (98%)    1.25    2 min 05 s  $1.04  mx-disnone
  dist_sync   2bit         succeeded       8160.5 (102%) *  1.31    2 min 05 s  $1.04  mx-dis2bit
  dist_async  none         failed                      -       -    2 min 05 s  $1.04  mx-disnone
  dist_async  2bit         waiting                     -       -

* no other combination has a better value
%  of the recipe's reference value
kvstore=dist_async compression=none: exit code 3
cost     $62.42, of which $3.12 for these runs
table    /state/matrices/mx-3f09ab/results.csv
resume   to run the missing combinations, run the same command again"""


def row(kvstore, compression, state="succeeded", speed=None, loss=None, **more):
    run = {"run_id": f"mx-{kvstore[:3]}{compression}", "digest": "d1", "seconds": 125.0, "usd": Decimal("1.04")}
    measured = (Measured("images_per_s", speed, SPEED), Measured("loss", loss, LOSS))
    if state == "waiting":
        run, measured = {}, ()
    return RowOutcome((("kvstore", kvstore), ("compression", compression)), state, measured=measured, **{**run, **more})


@pytest.fixture
def matrix():
    rows = (
        row("dist_sync", "none", speed=7850.0, loss=1.25),
        row("dist_sync", "2bit", speed=8160.5, loss=1.31, best=frozenset({"images_per_s"})),
        row("dist_async", "none", state="failed", reason="exit code 3"),
        row("dist_async", "2bit", state="waiting"),
    )
    axes = (("kvstore", ("dist_sync", "dist_async")), ("compression", ("none", "2bit")))
    record = MatrixRecord(
        name="mx-3f09ab",
        recipe="mx",
        recipe_path="/r/mx/recipe.yaml",
        target="aws",
        axes=axes,
        sets=(),
        created_at=NOW - timedelta(hours=3),
        rows=tuple(MatrixRow(one.values) for one in rows),
    )
    return MatrixOutcome(record, rows, Decimal("62.42"), "/state/matrices/mx-3f09ab/results.csv")


def shown(outcome):
    return "\n".join(outcome_lines(outcome))


def test_matrix_table_shows_results_of_every_combination(matrix):
    assert shown(matrix) == TABLE


def test_stopped_matrix_shows_leftovers_and_resume_command(matrix):
    assert "resume   to run the missing combinations, run the same command again" in shown(matrix)
    stopped = replace(matrix, stopped="cluster mx has expired", left=("cluster mx (2 x p3dn) is up",))
    text = shown(stopped)
    assert "stopped  cluster mx has expired; to run the missing combinations, run the same command again" in text
    assert "left     cluster mx (2 x p3dn) is up" in text
    assert "nothing was charged" not in text


def test_rehearsed_matrix_states_that_nothing_was_charged(matrix):
    text = shown(replace(matrix, record=replace(matrix.record, target="rehearsal")))
    assert "have a result (simulated)" in text
    assert "cost     $62.42, of which $3.12 for these runs (simulated; nothing was charged)" in text


def test_matrix_csv_has_one_row_per_combination(matrix):
    heading, *rows = matrix.as_csv().splitlines()
    assert heading == (
        "kvstore,compression,state,images_per_s,images_per_s_share_of_reference,loss,loss_share_of_reference,"
        "seconds,usd,simulated,run_id,recipe_digest,reason"
    )
    assert rows == [
        "dist_sync,none,succeeded,7850.0,0.9812,1.25,,125.0,1.04,false,mx-disnone,d1,",
        "dist_sync,2bit,succeeded,8160.5,1.0201,1.31,,125.0,1.04,false,mx-dis2bit,d1,",
        "dist_async,none,failed,,,,,125.0,1.04,false,mx-disnone,d1,exit code 3",
        "dist_async,2bit,waiting,,,,,,0,false,,,",
    ]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, 5),
        ({"unended": "2 resources are left"}, 6),
        ({"interrupted": True}, 130),
        ({"interrupted": True, "unended": "x"}, 6),
    ],
)
def test_matrix_exit_code_reflects_failures_interrupts_and_leftovers(matrix, change, code):
    assert exit_code(replace(matrix, **change)) == code


def test_complete_matrix_exits_zero_without_resume_hint(matrix):
    rows = tuple(
        replace(one, state=state) for one, state in zip(matrix.rows, ["succeeded", "not-run"] * 2, strict=True)
    )
    assert exit_code(replace(matrix, rows=rows)) == 0
    assert "resume" not in shown(replace(matrix, rows=rows))


def test_matrix_list_shows_progress_and_unreadable_records(matrix):
    assert list_lines([matrix], ["odd-123456"], NOW) == [
        "matrix     recipe  done    started                        values",
        "mx-3f09ab  mx      2 of 4  2026-11-21 09:00 UTC  3 h ago  kvstore=dist_sync,dist_async compression=none,2bit",
        "odd-123456  unknown: its record cannot be read",
    ]
    assert list_lines([], [], NOW) == ["no matrix has been run"]


def test_every_matrix_json_field_is_documented(matrix):
    page, document = PAGE.read_text(), matrix.as_json()
    for part in (document, document["combinations"][0], document["combinations"][0]["metrics"]["images_per_s"]):
        assert [name for name in part if f"`{name}`" not in page] == []
