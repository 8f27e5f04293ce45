"""Circumstances that may explain a failure are shown below the error: the shifted clock of the rehearsal cloud."""

import pytest

from cloudgpu.cli import main as boundary
from cloudgpu.cli.command_end import add_failure_note, take_failure_notes
from cloudgpu.cli.context import command_context
from cloudgpu.cli.main import main
from cloudgpu.clock import SystemClock
from cloudgpu.errors import StateError, UsageError
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.simulated_time import SimulatedTime

NOTE = "note: the simulated clock is 8h ahead; to reset it: cloudgpu rehearsal advance 8h --back"


@pytest.fixture
def advanced(home):
    path = RehearsalFiles.of(home).time
    path.parent.mkdir(parents=True, exist_ok=True)
    SimulatedTime(path, SystemClock()).advance(8 * 3600)
    return path


def failing(monkeypatch, error: Exception | None, target: str) -> int:
    def app(**_kwargs):
        command_context(target=target).backend()
        if error:
            raise error

    monkeypatch.setattr(boundary, "app", app)
    return main(["up"])


def test_shifted_clock_is_shown_below_errors_of_rehearsals(advanced, monkeypatch, capsys):
    assert failing(monkeypatch, StateError("cluster lab is incomplete"), "rehearsal") == StateError.exit_code
    assert capsys.readouterr().err.splitlines() == ["error: cluster lab is incomplete", NOTE]


@pytest.mark.parametrize(
    ("error", "target"),
    [(None, "rehearsal"), (UsageError("no such option"), "rehearsal"), (StateError("incomplete"), "aws")],
)
def test_shifted_clock_is_not_shown_where_it_explains_nothing(advanced, monkeypatch, capsys, error, target):
    failing(monkeypatch, error, target)
    assert "note:" not in capsys.readouterr().err


def test_clock_that_is_not_shifted_is_not_mentioned(home, monkeypatch, capsys):
    failing(monkeypatch, StateError("incomplete"), "rehearsal")
    assert capsys.readouterr().err == "error: incomplete\n"


def test_notes_are_shown_once():
    add_failure_note("clock", lambda: "of an earlier command")
    add_failure_note("clock", lambda: "shifted")
    assert list(take_failure_notes(5)) == ["shifted"]
    assert list(take_failure_notes(5)) == []
