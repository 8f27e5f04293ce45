"""`logs`: fetched, followed, or the copy on this machine with its age."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from cloudgpu.app.runs.attach import RunWatcher
from cloudgpu.app.runs.follow import FollowResult
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.main import main
from cloudgpu.errors import ConnectError
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.progress import Note, RankOutput
from cloudgpu.run.verdict import Chunk, Verdict


@pytest.fixture
def nodes(tmp_path, monkeypatch, run):
    """The nodes of a running run of two ranks; rank 0 has printed a line that is not copied yet."""
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    home = command_context().home
    store = LogStore(home.run(run.run_id))

    class Nodes(SimpleNamespace):
        def keep(self, **change):
            self.record = replace(run, **{"state": "running", "ended_at": None, **change})
            command_context().records.save_run(self.record)

        def add(self, rank, text):
            store.add(Chunk(rank, store.offset(rank), len(text), text))

        def age(self, **ago):
            at = (datetime.now(UTC) - timedelta(**ago)).timestamp()
            for path in home.run(run.run_id).logs.iterdir():
                os.utime(path, (at, at))

    nodes = Nodes(reachable=True, followed=False)
    nodes.keep()
    nodes.add(0, "first\n")
    nodes.add(1, "first of 1\n")

    def logs(watcher, _run_id, on_copied, *, follow):
        if not nodes.reachable:
            raise ConnectError("node 0 (i-1): connection refused")
        nodes.add(0, "second\n")
        on_copied()
        nodes.followed = follow
        if not follow:
            return None
        emit = watcher._context.emit
        emit(Note("reconnected", 1))
        emit(RankOutput(0, ("third",)))
        emit(RankOutput(1, ("second of 1",)))
        return FollowResult(Verdict("succeeded"), (), ())

    class Context(SimpleNamespace):
        emit = None

    monkeypatch.setattr(RunWatcher, "logs", logs)
    monkeypatch.setattr("cloudgpu.cli.commands.logs.replace", lambda context, emit: SimpleNamespace(emit=emit))
    monkeypatch.setattr(CliContext, "context", lambda _self, _target=None: Context())
    return nodes


def test_running_run_is_fetched_and_followed_by_default(nodes, capsys):
    assert main(["logs"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[:5] == [
        "[rank 0] first",
        "[rank 0] second",
        "[rank 1] first of 1",
        "[rank 0] third",
        "[rank 1] second of 1",
    ]
    assert shown.err.splitlines() == ["node 1: reconnected"]


def test_no_follow_fetches_and_ends(nodes, capsys):
    assert main(["logs", "--no-follow"]) == 0
    assert capsys.readouterr().out == "[rank 0] first\n[rank 0] second\n[rank 1] first of 1\n"
    assert nodes.followed is False


def test_copy_says_how_old_it_is_if_the_nodes_are_unreachable(nodes, capsys):
    nodes.reachable = False
    nodes.age(minutes=12, seconds=30)
    assert main(["logs"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "[rank 0] first\n[rank 1] first of 1\n"
    assert shown.err.startswith("this copy is 12 min old (")
    assert shown.err.endswith(" UTC); newer output may be on the nodes: node 0 (i-1): connection refused\n")
    assert main(["logs", "--follow"]) == ConnectError.exit_code


def test_missing_copy_is_reported_if_the_nodes_are_unreachable(nodes, capsys):
    nodes.reachable = False
    nodes.keep(run_id="another")
    assert main(["logs", "another"]) == 0
    assert capsys.readouterr().err.startswith("there is no copy of the output on this machine: node 0 (i-1)")


def test_finished_run_is_read_from_the_copy_without_the_nodes(nodes, capsys):
    nodes.reachable = False
    nodes.keep(state="succeeded", ended_at=datetime.now(UTC))
    assert main(["logs"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("[rank 0] first\n[rank 1] first of 1\n", "")


@pytest.mark.parametrize(
    ("options", "out"),
    [
        (("--tail", "1"), "[rank 0] second\n[rank 1] first of 1\n"),
        (("--tail", "0"), ""),
        (("--tail", "1", "--rank", "0"), "[rank 0] second\n"),
    ],
    ids=" ".join,
)
def test_tail_shows_the_last_lines_of_each_rank(nodes, capsys, options, out):
    assert main(["logs", "--no-follow", *options]) == 0
    assert capsys.readouterr().out == out


def test_json_is_one_object_for_each_line(nodes, capsys):
    assert main(["logs", "--json", "--rank", "0"]) == 0
    shown = capsys.readouterr()
    assert [json.loads(line) for line in shown.out.splitlines()] == [
        {"rank": 0, "line": line} for line in ("first", "second", "third")
    ]


def test_only_rank_has_no_prefix(nodes, capsys):
    nodes.keep(ranks={"0": (0,)})
    assert main(["logs", "--no-follow"]) == 0
    assert capsys.readouterr().out == "first\nsecond\n"


def test_unknown_rank_is_named(nodes, capsys):
    nodes.keep(ranks={"0": (0,)})
    assert main(["logs", "--rank", "3"]) == 2
    assert "has no rank 3; its only rank is 0" in capsys.readouterr().err
