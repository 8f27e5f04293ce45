"""When the output of a run was written: `logs --timestamps`, `--since` and `--json`, live and after the run."""

import json
from datetime import UTC, datetime, timedelta

import pytest

pytestmark = pytest.mark.rehearsal

SCRIPT = """
    import os, time
    print("before", time.time(), flush=True)
    while not os.path.exists("go"):
        time.sleep(0.05)
    print("after", time.time(), flush=True)
"""


def read(output):
    """Return rank, word, how many seconds after the line was printed its time is, and the time."""
    found = []
    for text in output:
        line = json.loads(text)
        word, printed = line["line"].split()
        written = datetime.fromisoformat(line["time"])
        assert written.utcoffset() == timedelta()
        found.append((line["rank"], word, written.timestamp() - float(printed), written))
    return found


def lines(workspace, *options):
    return read(workspace.run("logs", "--json", *options).stdout.splitlines())


def test_times_of_a_live_and_of_a_finished_run(workspace):
    workspace.recipe(script=SCRIPT, launch="{with: each-node, command: python3 train.py}", outputs="[]", metrics="{}")
    run = workspace.json("train", "plain", "--yes", "--detach")
    folder, cluster = f".cloudgpu/runs/{run['run_id']}/work", run["cluster"]
    before = []
    while len(before) < 2:
        before = lines(workspace, "--no-follow")
    assert [(rank, word) for rank, word, *_ in before] == [(0, "before"), (1, "before")]
    since = (max(written for *_, written in before) + timedelta(milliseconds=1)).isoformat()
    assert workspace.run("logs", "--no-follow", "--since", since).stdout == ""

    follower = workspace.popen("logs", "--json", "--follow")
    assert sorted(read(follower.stdout.readline() for _ in range(2))) == sorted(before)
    workspace.run("exec", cluster, "--", "touch", f"{folder}/go")
    followed = read(follower.communicate(timeout=60)[0].splitlines())
    assert sorted((rank, word) for rank, word, *_ in followed) == [(0, "after"), (1, "after")]

    workspace.json("attach", run["run_id"])
    whole = lines(workspace)
    assert [(rank, word) for rank, word, *_ in whole] == [(0, "before"), (0, "after"), (1, "before"), (1, "after")]
    # Nodes are processes of this machine. The clock of file times is up to 10 ms behind, and an entry a second late.
    assert all(-0.05 <= late <= 3 for *_, late, _ in whole), whole
    assert sorted(whole) == sorted(before + followed)

    assert [word for _, word, *_ in lines(workspace, "--since", since, "--rank", "1")] == ["after"]
    assert [word for _, word, *_ in lines(workspace, "--since", since, "--tail", "5")] == ["after", "after"]
    assert [word for _, word, *_ in lines(workspace, "--since", "1h", "--tail", "1")] == ["after", "after"]
    assert lines(workspace, "--since", (datetime.now(UTC) + timedelta(hours=1)).isoformat()) == []
    shown = workspace.run("logs", "--timestamps").stdout.splitlines()
    assert [line.split(" ", 1)[0] for line in shown] == [f"{written:%Y-%m-%dT%H:%M:%SZ}" for *_, written in whole]
    assert [line.split()[1:4] for line in shown][1] == ["[rank", "0]", "after"]

    workspace.home.run(run["run_id"]).log_times(1).unlink()
    refused = workspace.run("logs", "--since", since, code=2)
    assert refused.stdout == ""
    assert "the copy on this machine lacks the times" in refused.stderr
    assert [word for _, word, *_ in lines(workspace, "--since", since, "--rank", "0")] == ["after"]
    unknown = [line[:21] for line in workspace.run("logs", "--timestamps", "--rank", "1").stdout.splitlines()]
    assert unknown == ["-".ljust(21)] * 2
