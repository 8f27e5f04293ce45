"""What `down` of several clusters says."""

from decimal import Decimal

import pytest

from cloudgpu.app.clusters.delete_many import TeardownResults
from cloudgpu.app.runs.stages import Stages
from cloudgpu.backends.lifecycle.results import DeletionResult
from cloudgpu.cli.main import main
from cloudgpu.cli.render.cluster import deletions_json, deletions_lines
from cloudgpu.cli.render.error import error_json
from cloudgpu.clock import ManualClock
from cloudgpu.errors import AuthError

A = DeletionResult("a", known=True, instances=("i-1", "i-2"), usd=Decimal("31.212"), run_id="r-1")
B = DeletionResult("b", known=False, orphans=("volume vol-1",), simulated=True)


@pytest.fixture
def stages(now):
    return Stages(ManualClock(now), lambda _: None)


def test_as_text():
    assert deletions_lines(TeardownResults((A, B))) == [
        "cluster a is deleted, verified by tag search; 2 instances terminated",
        "  i-1",
        "  i-2",
        "  cost $31.21",
        "cluster b is deleted, verified by tag search; 1 resource deleted",
        "  volume vol-1  (found only by its tag)",
    ]
    assert deletions_lines(TeardownResults(())) == ["no cluster is running; nothing to delete"]


def test_as_json(stages):
    document = deletions_json(TeardownResults((A,), (("b", AuthError("the token has expired")),)), stages)
    assert document == {"clusters": [A.as_json()], "left": ["b: the token has expired"], "stages": []}


def test_the_error_names_each_and_why():
    came_to = TeardownResults((A,), (("b", AuthError("the token has expired")), ("c", AuthError("no such profile"))))
    assert error_json(came_to.error())["error"] == {
        "type": "TeardownError",
        "message": "2 of 3 clusters are not confirmed deleted: b, c",
        "hint": "continue with `cloudgpu down b c`",
        "exit_code": 6,
        "details": ["b: the token has expired", "c: no such profile"],
    }


@pytest.mark.parametrize("args", [("a", "--all"), ("--mine", "--all"), ("a", "--run", "r"), ("--run", "r")])
def test_what_makes_no_sense_is_refused(args, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    assert main(["down", *args]) == 2
    assert "hint: " in capsys.readouterr().err


def test_nothing_to_end_needs_no_answer_and_no_cloud(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    assert main(["down", "--all"]) == 0
    assert capsys.readouterr().out == "no cluster is running; nothing to delete\n"
