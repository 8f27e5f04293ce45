"""The kill matrix: shards, skipping of completed cases, and the report."""

import pytest

from tests.rehearsal.kills.matrix import Matrix, Result, Shard, load_results, record_result, report

CASES = [f"CreateFleet#{number} effect" for number in range(100)]


def test_every_case_belongs_to_exactly_one_shard():
    parts = [[case for case in CASES if Shard(number, 4).contains(case)] for number in range(4)]
    assert sorted(case for part in parts for case in part) == sorted(CASES)
    assert all(10 < len(part) < 40 for part in parts)


@pytest.mark.parametrize("text", ["0/4", "5/4", "x/4", "3", ""])
def test_invalid_shard_is_rejected(text):
    with pytest.raises(ValueError, match=r"shard|invalid literal"):
        Shard.parse(text)
    assert Shard.parse("3/8") == Shard(2, 8)


def test_only_failed_and_unrun_cases_are_due(tmp_path):
    matrix = Matrix(tmp_path / "results", Shard())
    assert matrix.pending("t", CASES) == CASES
    matrix.add(Result("t", CASES[0], 1.0))
    matrix.add(Result("t", CASES[1], 1.0, "AssertionError: left"))
    matrix.add(Result("other", CASES[2], 1.0))
    assert matrix.pending("t", CASES) == CASES[1:]
    matrix.add(Result("t", CASES[1], 1.0))
    assert matrix.pending("t", CASES) == CASES[2:]


def test_truncated_result_line_loses_only_itself(tmp_path):
    matrix = Matrix(tmp_path, Shard())
    matrix.add(Result("t", "a", 1.0))
    results = tmp_path / "results.jsonl"
    results.write_text(results.read_text() + '\n{"test": "t", "ca')
    matrix.add(Result("t", "b", 1.0))
    assert [result.case for result in load_results(tmp_path)] == ["a", "b"]


def test_failure_is_recorded_but_interrupt_is_not(tmp_path):
    matrix = Matrix(tmp_path, Shard())
    with record_result(matrix, "t", 3):
        pytest.fail("something is left\nand more")
    with pytest.raises(KeyboardInterrupt), record_result(matrix, "t", 4):
        raise KeyboardInterrupt
    (result,) = load_results(tmp_path)
    assert (result.case, result.failure) == ("3", "Failed: something is left")


def test_report_shows_remaining_and_failed_cases(tmp_path):
    matrix = Matrix(tmp_path, Shard())
    matrix.pending("tests/rehearsal/kills/test_x.py::test_y", CASES)
    matrix.add(Result("tests/rehearsal/kills/test_x.py::test_y", "a", 2.0))
    matrix.add(Result("tests/rehearsal/kills/test_x.py::test_y", "b", 4.0, "AssertionError: left"))
    assert report(tmp_path) == [
        " passed  failed    left  s/case  test",
        "      1       1      98    3.00  test_x.py::test_y",
        "1 of 100 cases passed; some 5 min of one worker are left",
        "failed: test_x.py::test_y at b: AssertionError: left",
    ]


def test_report_without_results_shows_zero_cases(tmp_path):
    assert report(tmp_path / "nowhere")[-1] == "0 of 0 cases passed; some 0 min of one worker are left"
