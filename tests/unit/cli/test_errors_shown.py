"""An error, its details and the output of a failed rank are on the screen once."""

from dataclasses import replace
from pathlib import Path

import pytest

from cloudgpu.app.runs.nodes import FollowResult
from cloudgpu.cli.render.error import detail_lines, error_json
from cloudgpu.cli.render.run import report_final_state, show_outcome
from cloudgpu.cli.terminal.output import Output
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.errors import PlanError, RecipeError, RemoteCommandError
from cloudgpu.run.agent_messages import Verdict
from cloudgpu.run.progress import RankLine, RankOutput
from tests.unit.cli.hostile import without_our_colours


def test_details_that_the_message_contains_at_its_end_are_not_repeated() -> None:
    err = RemoteCommandError("node 0: the agent's `env` exited with code 1: no space", tail=["first", "", " no space"])
    assert detail_lines(err) == ["first", ""]
    assert error_json(err)["error"]["details"] == ["first", "", " no space"]
    assert detail_lines(RecipeError("one of the problems", problems=["a", "b"])) == ["a", "b"]


def refused() -> PlanError:
    err = PlanError("recipe x cannot run as planned", findings=["dataset: a is missing"], hint="add it")
    err.summary = "see the error above"
    return err


DETAILS = "error: recipe x cannot run as planned\n  dataset: a is missing\nhint: add it\n"
SUMMARY = "error: see the error above\nhint: add it\n"


@pytest.mark.parametrize(("together", "shown"), [(True, SUMMARY), (False, DETAILS)])
def test_an_error_is_only_summarized_where_its_details_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool, shown: str
) -> None:
    log = tmp_path / "log"
    with log.open("w") as out, (log if together else tmp_path / "errors").open("a") as err:
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        Screen().error(refused())
    assert (log if together else tmp_path / "errors").read_text() == shown


def test_the_document_of_a_summarized_error_is_complete(capsys: pytest.CaptureFixture) -> None:
    Screen(json_mode=True).error(refused())
    shown = capsys.readouterr()
    assert shown.err == SUMMARY
    assert "dataset: a is missing" in shown.out
    assert "recipe x cannot run as planned" in shown.out


FAILED = ("Traceback (most recent call last):", "ValueError: the shape is wrong")


def failed(outcome, lines: tuple[str, ...]):
    record = replace(outcome.record, state="failed", failed_rank=1, exit_code=1, ranks={"0": (0, 1)})
    return replace(outcome, record=record, tail=lines)


@pytest.mark.parametrize(
    ("others", "again"),
    [(0, False), (20, False), (60, True)],
)
def test_traceback_that_was_just_printed_is_not_repeated(outcome, capsys, others: int, again: bool) -> None:
    screen = Screen()
    screen.emit(RankLine(1, "start"))
    screen.emit(RankOutput(1, FAILED))
    for number in range(others):
        screen.emit(RankLine(0, f"step {number}"))
    show_outcome(failed(outcome, FAILED), screen)
    shown = capsys.readouterr().out
    assert shown.count("ValueError: the shape is wrong") == 1 + again
    assert ("its output are above" in shown) is not again


@pytest.mark.parametrize(
    ("state", "reason", "line"),
    [
        ("failed", "exit code 1", "failed; rank 0 failed with exit code 1; exit code 1\n"),
        ("lost", "spot node 1 is terminated", "lost; spot node 1 is terminated; rank 0 failed with exit code 1\n"),
    ],
)
def test_final_state_of_a_lost_run_names_the_lost_node_before_the_rank(capsys, state: str, reason: str, line: str):
    followed = FollowResult(Verdict(state, 1, 0, 0, reason), (), ())
    assert report_final_state("r-1", followed, Screen()) == 5
    assert f"final state of the run: {line}" in capsys.readouterr().out


def test_traceback_that_was_not_printed_is_shown(outcome, capsys) -> None:
    screen = Screen()
    screen.emit(RankLine(0, FAILED[-1]))
    show_outcome(failed(outcome, FAILED), screen)
    assert "rank 1 failed first (exit code 1) on node 0; last lines of its output:" in capsys.readouterr().out


@pytest.mark.parametrize("is_terminal", [True, False])
def test_errors_are_wrapped_on_a_terminal_but_commands_stay_whole(
    is_terminal: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Output, "is_terminal", is_terminal)
    monkeypatch.setattr(Output, "columns", 40)
    error = RecipeError(
        "the field resources.gpu expects a model and a count, for example V100:8",
        hint="available recipes: plain, quickstart; or list the fields: cloudgpu recipe show recipes/plain/recipe.yaml",
        problems=["resources.gpu: expected a GPU model and a count per node"],
    )
    Screen().error(error)
    lines = without_our_colours(capsys.readouterr().err).splitlines()
    if not is_terminal:
        assert len(lines) == 3
        return
    assert lines == [
        "error: the field resources.gpu expects a",
        "  model and a count, for example V100:8",
        "  resources.gpu: expected a GPU model",
        "    and a count per node",
        "hint: available recipes: plain,",
        "  quickstart; or list the fields:",
        "  cloudgpu recipe show recipes/plain/recipe.yaml",
    ]
