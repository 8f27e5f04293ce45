"""Output of `down` for several clusters."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace

import pytest

from cloudgpu.app.cluster_deletion import TeardownResults
from cloudgpu.backends.lifecycle.results import DeletionResult
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.main import main
from cloudgpu.cli.render.cluster import deletions_json, deletions_lines
from cloudgpu.cli.render.error import error_json
from cloudgpu.errors import AuthError
from cloudgpu.run.progress import Stages
from cloudgpu.state.record_store import RecordStore
from tests.cluster_records import changed
from tests.manual_clock import ManualClock

A = DeletionResult("a", known=True, instances=("i-1", "i-2"), usd=Decimal("31.212"), run_id="r-1")
B = DeletionResult("b", known=False, orphans=("volume vol-1",), simulated=True)


@pytest.fixture
def stages(now):
    return Stages(ManualClock(now), lambda _: None)


def test_deletion_of_several_clusters_is_shown_as_text():
    assert deletions_lines(TeardownResults((A, B))) == [
        "cluster a is deleted, verified by tag search; 2 instances terminated",
        "  i-1",
        "  i-2",
        "  cost $31.21",
        "cluster b is deleted, verified by tag search; 1 resource deleted",
        "  volume vol-1  (found only by its tag)",
    ]
    assert deletions_lines(TeardownResults(())) == ["no cluster is recorded on this machine; nothing to delete"]


def test_deletion_of_several_clusters_is_shown_as_json(stages):
    document = deletions_json(TeardownResults((A,), (("b", AuthError("the token has expired")),)), stages)
    assert document == {"clusters": [A.as_json()], "left": ["b: the token has expired"], "stages": []}


def test_teardown_error_lists_each_failed_cluster_and_reason():
    came_to = TeardownResults((A,), (("b", AuthError("the token has expired")), ("c", AuthError("no such profile"))))
    assert error_json(came_to.error())["error"] == {
        "type": "TeardownError",
        "message": "2 of 3 clusters are not confirmed deleted: b, c",
        "hint": "continue with `cloudgpu down b c`",
        "exit_code": 6,
        "details": ["b: the token has expired", "c: no such profile"],
    }


@pytest.mark.parametrize("args", [("a", "--all"), ("--mine", "--all"), ("a", "--run", "r"), ("--run", "r")])
def test_contradictory_down_options_are_rejected(args, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    assert main(["down", *args]) == 2
    assert "hint: " in capsys.readouterr().err


def test_down_without_clusters_succeeds_without_prompt_or_cloud(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    assert main(["down", "--all"]) == 0
    assert capsys.readouterr().out == "no cluster is recorded on this machine; nothing to delete\n"


class Person(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True


@pytest.fixture
def down(tmp_path, monkeypatch, cluster, now):
    """`down` on a state home with the cluster s1 of ann, as ann or another owner."""
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUDGPU_OWNER", "ann")
    records = command_context().records
    records.save_cluster(changed(cluster, expires_at=datetime.now(UTC) + timedelta(hours=1)), now)
    ended = []

    class Clusters:
        def delete(self, name, _region):
            ended.append(name)
            return replace(A, cluster=name)

    context = SimpleNamespace(clusters=Clusters())
    monkeypatch.setattr(CliContext, "deletion_context_of", lambda _self, _name: context)
    return SimpleNamespace(run=lambda *args: main(["down", *args]), records=records, ended=ended)


REASONS = [
    "cluster s1 belongs to ann; $62.42 an hour (simulated)",
    "run r1 of bob is in progress on it",
]


def test_down_of_a_busy_cluster_requires_yes_without_a_terminal(down, run, capsys):
    down.records.save_run(replace(run, run_id="r1", cluster="s1", owner="bob", state="running", ended_at=None))
    assert down.run("s1") == 14
    assert capsys.readouterr().err.splitlines() == [
        "error: confirmation is required (Delete cluster s1?), but there is no terminal",
        *(f"  {reason}" for reason in REASONS),
        "hint: to delete without a prompt: cloudgpu down s1 --yes",
    ]
    assert down.ended == []
    assert down.run("s1", "--yes") == 0
    assert down.ended == ["s1"]


@pytest.mark.parametrize("answer", [True, False])
def test_down_of_a_busy_cluster_asks_on_a_terminal(down, run, capsys, monkeypatch, answer):
    down.records.save_run(replace(run, run_id="r1", cluster="s1", owner="bob", state="running", ended_at=None))
    asked = []
    err = Person()
    monkeypatch.setattr("sys.stdin", Person())
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setattr("typer.confirm", lambda question, **_: bool(asked.append(question)) or answer)
    assert down.run("s1") == (0 if answer else 1)
    assert err.getvalue().splitlines() == REASONS
    assert asked == ["Delete cluster s1?"]
    assert down.ended == (["s1"] if answer else [])
    capsys.readouterr()


def test_down_of_another_owner_s_cluster_requires_yes(down, monkeypatch, capsys):
    monkeypatch.setenv("CLOUDGPU_OWNER", "bob")
    assert down.run("s1", "--json") == 14
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["details"] == REASONS[:1]


@pytest.mark.parametrize(
    "change",
    [
        {"state": "succeeded"},  # its outputs may be missing, but nothing is in progress
        {"state": "cancelled", "ended_at": datetime(2026, 11, 21, tzinfo=UTC)},
        {"state": "preparing", "ranks": {}},  # a killed `train` leaves this state
        {"state": "running", "cluster": "s2"},
    ],
    ids=str,
)
def test_down_of_an_own_idle_cluster_is_silent(down, run, change):
    down.records.save_run(replace(run, **{"cluster": "s1", "ended_at": None, **change}))
    assert down.run("s1") == 0
    assert down.ended == ["s1"]


@pytest.mark.parametrize("change", [{"state": "ending"}, {"expires_at": datetime(2026, 11, 20, tzinfo=UTC)}], ids=str)
def test_down_asks_nothing_about_a_cluster_that_is_already_going(down, run, now, change):
    record = down.records.cluster("s1")
    down.records.save_cluster(changed(record, **change), now)
    down.records.save_run(replace(run, cluster="s1", state="running", ended_at=None))
    assert down.run("s1") == 0


@pytest.mark.parametrize("unreadable", ["record", "runs"])
def test_down_deletes_without_asking_if_the_state_is_unreadable(down, run, unreadable, monkeypatch):
    """A damaged record or disk must never keep a node running."""
    down.records.save_run(replace(run, cluster="s1", state="running", ended_at=None))
    if unreadable == "record":
        command_context().home.cluster("s1").record.write_text("{")
    else:

        def fail(_self):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(RecordStore, "runs", fail)
    assert down.run("s1") == 0
    assert down.ended == ["s1"]
