"""`logs`: fetched, followed, or the copy on this machine with its age."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from cloudgpu.app.runs.attach import RunWatcher
from cloudgpu.app.runs.nodes import FollowResult
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.main import main
from cloudgpu.errors import ConnectError, UsageError
from cloudgpu.run.agent_messages import Chunk, Verdict
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.progress import Note, RankOutput


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

        def add(self, rank, text, written_at=None):
            start, end = store.offset(rank), store.offset(rank) + len(text)
            times = () if written_at is None else ((end, int(written_at.timestamp() * 1000)),)
            store.add(Chunk(rank, start, len(text), text.encode(), times))

        def age(self, **ago):
            at = (datetime.now(UTC) - timedelta(**ago)).timestamp()
            for path in home.run(run.run_id).logs.iterdir():
                os.utime(path, (at, at))

    nodes = Nodes(reachable=True, followed=False, second_at=None, third_at=None, logs=home.run(run.run_id).logs)
    nodes.keep()
    nodes.add(0, "first\n")
    nodes.add(1, "first of 1\n")

    def logs(watcher, _run_id, on_copied, *, follow):
        if not nodes.reachable:
            raise ConnectError("node 0 (i-1): connection refused")
        nodes.add(0, "second\n", nodes.second_at)
        on_copied()
        nodes.followed = follow
        if not follow:
            return None
        emit = watcher._context.emit
        emit(Note("reconnected", 1))
        emit(RankOutput(0, ("third",), written_at=nodes.third_at))
        emit(RankOutput(1, ("second of 1",)))
        return FollowResult(Verdict("succeeded"), (), ())

    class Context(SimpleNamespace):
        emit = None

    monkeypatch.setattr(RunWatcher, "logs", logs)
    monkeypatch.setattr("cloudgpu.cli.commands.runs.replace", lambda context, emit: SimpleNamespace(emit=emit))
    monkeypatch.setattr(CliContext, "backend_context", lambda _self, _target=None: Context())
    return nodes


AT = datetime(2026, 11, 27, 9, 12, 3, 250000, tzinfo=UTC)


@pytest.fixture
def timed(nodes):
    """The same run, but it is known when its lines were written: half a minute apart, and those of rank 1 a day ago."""
    for path in nodes.logs.iterdir():
        path.unlink()
    nodes.add(0, "first\n", AT)
    nodes.second_at, nodes.third_at = AT + timedelta(seconds=30), AT + timedelta(seconds=60)
    nodes.add(1, "first of 1\n", AT - timedelta(days=1))
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
        {"rank": 0, "line": line, "time": None} for line in ("first", "second", "third")
    ]


def test_only_rank_has_no_prefix(nodes, capsys):
    nodes.keep(ranks={"0": (0,)})
    assert main(["logs", "--no-follow"]) == 0
    assert capsys.readouterr().out == "first\nsecond\n"


def test_unknown_rank_is_named(nodes, capsys):
    nodes.keep(ranks={"0": (0,)})
    assert main(["logs", "--rank", "3"]) == 2
    assert "has no rank 3; its only rank is 0" in capsys.readouterr().err


def test_timestamps_begin_every_line(timed, capsys):
    assert main(["logs", "--timestamps"]) == 0
    assert capsys.readouterr().out.splitlines()[:5] == [
        "2026-11-27T09:12:03Z [rank 0] first",
        "2026-11-27T09:12:33Z [rank 0] second",
        "2026-11-26T09:12:03Z [rank 1] first of 1",
        "2026-11-27T09:13:03Z [rank 0] third",
        "-                    [rank 1] second of 1",
    ]


def test_timestamps_of_an_only_rank(timed, capsys):
    timed.keep(ranks={"0": (0,)})
    assert main(["logs", "--timestamps", "--no-follow", "--tail", "1"]) == 0
    assert capsys.readouterr().out == "2026-11-27T09:12:33Z second\n"


def test_json_has_the_time_of_each_line(timed, capsys):
    assert main(["logs", "--json", "--no-follow"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"rank": 0, "line": "first", "time": "2026-11-27T09:12:03.250Z"},
        {"rank": 0, "line": "second", "time": "2026-11-27T09:12:33.250Z"},
        {"rank": 1, "line": "first of 1", "time": "2026-11-26T09:12:03.250Z"},
    ]


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (("--since", "2026-11-27"), ["[rank 0] first", "[rank 0] second"]),
        (("--since", "2026-11-27T09:12:03Z"), ["[rank 0] first", "[rank 0] second"]),
        (("--since", "2026-11-27T10:12:04+01:00"), ["[rank 0] second"]),
        (("--since", "2026-11-26T09:00", "--rank", "1"), ["[rank 1] first of 1"]),
        (("--since", "2026-11-26", "--tail", "1"), ["[rank 0] second", "[rank 1] first of 1"]),
        (
            ("--since", "2026-11-27", "--tail", "5", "--timestamps", "--rank", "0"),
            [
                "2026-11-27T09:12:03Z [rank 0] first",
                "2026-11-27T09:12:33Z [rank 0] second",
            ],
        ),
        (("--since", "2026-11-28"), []),
    ],
    ids=" ".join,
)
def test_since_shows_the_lines_written_from_then_on(timed, capsys, options, lines):
    assert main(["logs", "--no-follow", *options]) == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_since_a_duration_before_now(timed, capsys):
    now = datetime.now(UTC)
    for path in timed.logs.iterdir():
        path.unlink()
    timed.add(0, "old\n", now - timedelta(hours=3))
    timed.add(0, "recent\n", now - timedelta(minutes=50))
    timed.second_at = now
    assert main(["logs", "--no-follow", "--since", "1h30m"]) == 0
    assert capsys.readouterr().out == "[rank 0] recent\n[rank 0] second\n"
    assert main(["logs", "--no-follow", "--since", "10m", "--tail", "1"]) == 0
    assert capsys.readouterr().out == "[rank 0] second\n"


def test_since_applies_to_lines_that_are_followed(timed, capsys):
    assert main(["logs", "--since", "2026-11-27T09:13Z"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["[rank 0] third", "[rank 1] second of 1"]
    assert main(["logs", "--since", "2026-11-27T09:14Z"]) == 0
    assert capsys.readouterr().out.splitlines()[:1] == ["[rank 1] second of 1"]


@pytest.mark.parametrize("state", ["running", "succeeded"])
def test_since_is_refused_if_the_times_are_unknown(nodes, capsys, state):
    nodes.keep(state=state, ended_at=None if state == "running" else datetime.now(UTC))
    assert main(["logs", "--since", "2026-11-27T09:12Z", "--rank", "1"]) == UsageError.exit_code
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (
        "",
        "error: which output of rank 1 of run quickstart-k3fz8w was written since 2026-11-27 09:12:00 UTC is unknown: "
        "the copy on this machine lacks the times\n"
        "hint: runs that an earlier version of cloudgpu started or copied have no times; use --tail N instead\n",
    )


def test_since_is_refused_before_anything_is_shown_if_one_rank_has_no_times(timed, capsys):
    timed.add(1, "copied by an earlier version\n")
    assert main(["logs", "--since", "2026-11-27T09:12Z"]) == UsageError.exit_code
    assert capsys.readouterr().out == ""
    assert main(["logs", "--since", "2026-11-27T09:12Z", "--rank", "0", "--no-follow"]) == 0
    assert capsys.readouterr().out.splitlines() == ["[rank 0] first", "[rank 0] second", "[rank 0] second"]


@pytest.mark.parametrize("since", ["soon", "10", "", "1999-01-01", "2026-13-01", "0m", "10 minutes", "9" * 30 + "d"])
def test_invalid_since_is_rejected(timed, capsys, since):
    assert main(["logs", "--since", since]) == UsageError.exit_code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"--since {since}: expected a duration such as 10m or 2h, or a UTC time such as" in shown.err
    hint = "a duration needs a unit, and a time its date: --since 10m, or --since 2026-11-27T09:12Z"
    assert shown.err.splitlines()[-1] == f"hint: {hint}"
