"""`scripts/live` on the rehearsal cloud: the free checks and their replay, a whole smoke run, interrupted runs."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.rehearsal import client
from tests.unit.live_tier.identifiers import leftovers

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
LIMIT_S = 900
EXPIRY_S = 1800.0


def start(workspace, *arguments):
    paths = os.pathsep.join((str(ROOT), str(ROOT / "scripts")))
    cache = os.environ.get("CLOUDGPU_ENV_CACHE", str(ROOT / ".cache" / "envs"))
    return subprocess.Popen(
        [sys.executable, "-m", "live_tier", *arguments, "--on", "rehearsal"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=workspace.work,
        env={**workspace.environment, "PYTHONPATH": paths, "CLOUDGPU_ENV_CACHE": cache, "CLOUDGPU_OWNER": "ann.lee"},
    )


def finish(process, code):
    """Return what the process printed and the folder of its report."""
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code, out + err
    folder = re.search(r"^report  (.+)$", out, re.MULTILINE)
    return out, Path(folder[1]) if folder else None


def report(folder):
    return json.loads((folder / "report.json").read_text())


def states(folder):
    return {check["name"]: check["state"] for check in report(folder)["checks"]}


def require_scrubbed(folder):
    """No file holds an identifier, the user's name or the unscrubbed recordings."""
    assert folder.stat().st_mode & 0o077 == 0
    assert not (folder / "raw").exists()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 3
    for path in files:
        text = path.read_text()
        assert leftovers(text) == [], path
        assert "ann.lee" not in text, path


def require_same_replay(workspace, level, recorded):
    """Replay a recording while the cloud answers nothing: the report has the same results."""
    client.put_faults(workspace.cloud, [{"action": "*", "code": "InternalError", "http": 500}])
    _, replayed = finish(start(workspace, level, "--replay", str(recorded / "recording")), 0)
    client.put_faults(workspace.cloud, [])
    for name in ("checks", "left", "usd"):
        assert report(replayed)[name] == report(recorded)[name]


def interrupted(workspace, number, level="smoke"):
    """Start a level, send a signal while the launch request is in progress, let the request finish."""
    client.put_faults(workspace.cloud, [{"action": "CreateFleet", "do": "hold", "phase": "after_effect", "times": 1}])
    process = start(workspace, level, "--yes")
    workspace.until_held(process)
    process.send_signal(number)
    if number == signal.SIGKILL:
        process.communicate(timeout=LIMIT_S)
    client.put_faults(workspace.cloud, [])
    return process


def test_check_verifies_everything_and_its_recording_replays(cold_workspace):
    out, recorded = finish(start(cold_workspace, "check"), 0)
    assert "9 verified, 0 failed, 0 not verified  [simulated]" in out
    assert max(map(len, (recorded / "report.txt").read_text().split("\n"))) <= 80
    require_scrubbed(recorded)
    assert cold_workspace.left() == {}
    require_same_replay(cold_workspace, "check", recorded)


def test_interrupted_smoke_deletes_its_cluster_and_reports(cold_workspace):
    process = interrupted(cold_workspace, signal.SIGINT)
    out, folder = finish(process, 130)
    assert "interrupted: later steps were not run" in out
    assert report(folder)["left"] == []
    assert (states(folder)["final search"], states(folder)["training"]) == ("verified", "not verified")
    require_scrubbed(folder)
    assert cold_workspace.left() == {}


def test_killed_smoke_is_found_and_deleted_by_the_next_one_whose_recording_replays(cold_workspace, until):
    interrupted(cold_workspace, signal.SIGKILL)
    until(lambda: client.nodes(cold_workspace.cloud))
    (killed,) = cold_workspace.json("status")["clusters"]
    process = start(cold_workspace, "smoke")
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 14, out + err
    assert f"an earlier run left {killed['cluster']}: " in out
    assert f"confirmation is required (Delete {killed['cluster']}?), but there is no terminal" in err
    out, folder = finish(start(cold_workspace, "smoke", "--yes"), 0)
    assert {name for name, state in states(folder).items() if state == "not verified"} == {"driver", "container"}
    assert "left  nothing (verified by tag search)" in out
    require_scrubbed(folder)
    assert cold_workspace.left() == {}
    assert [row for row in cold_workspace.json("cost")["rows"] if row["open_entries"]] == []
    require_same_replay(cold_workspace, "smoke", folder)


def test_pair_without_a_terminal_shows_its_price_and_launches_nothing(cold_workspace):
    process = start(cold_workspace, "pair")
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 14, out + err
    assert "2 x g4dn.8xlarge, on demand, one EFA interface each" in out
    assert re.search(r"at most [0-9.]+ USD", out)
    assert "confirmation is required (Launch it?), but there is no terminal" in err
    assert cold_workspace.left() == {}


def test_pair_runs_on_two_nodes_with_efa_and_its_recording_replays(cold_workspace):
    out, folder = finish(start(cold_workspace, "pair", "--yes"), 0)
    open_questions = {"driver", "EFA devices", "transport"}
    assert states(folder) == {name: "not verified" if name in open_questions else "verified" for name in states(folder)}
    details = {check["name"]: check["detail"] for check in report(folder)["checks"]}
    assert details["launch"].startswith("2 x g4dn.8xlarge in ")
    assert details["EFA interfaces"] == "EFA interfaces per node: 1, 1"
    assert "left  nothing (verified by tag search)" in out
    require_scrubbed(folder)
    assert cold_workspace.left() == {}
    assert [row for row in cold_workspace.json("cost")["rows"] if row["open_entries"]] == []
    require_same_replay(cold_workspace, "pair", folder)


def test_interrupted_pair_leaves_nothing(cold_workspace):
    out, folder = finish(interrupted(cold_workspace, signal.SIGTERM, "pair"), 130)
    assert "interrupted: later steps were not run" in out
    assert report(folder)["left"] == []
    assert (states(folder)["final search"], states(folder)["all-reduce"]) == ("verified", "not verified")
    assert cold_workspace.left() == {}
    assert [row for row in cold_workspace.json("cost")["rows"] if row["open_entries"]] == []


def test_nodes_of_a_killed_pair_end_at_their_own_expiry(cold_workspace, until):
    interrupted(cold_workspace, signal.SIGKILL, "pair")
    until(lambda: len(client.nodes(cold_workspace.cloud)) == 2)
    client.advance(cold_workspace.cloud, EXPIRY_S)
    until(lambda: not client.nodes(cold_workspace.cloud))


def test_nodes_of_a_killed_smoke_end_at_their_own_expiry(cold_workspace, until):
    interrupted(cold_workspace, signal.SIGKILL)
    until(lambda: client.nodes(cold_workspace.cloud))
    client.advance(cold_workspace.cloud, EXPIRY_S)
    until(lambda: not client.nodes(cold_workspace.cloud))


def test_second_run_at_the_same_time_is_refused(cold_workspace):
    client.put_faults(cold_workspace.cloud, [{"action": "GetCallerIdentity", "do": "hold", "times": 1}])
    first = start(cold_workspace, "check")
    cold_workspace.until_held(first)
    process = start(cold_workspace, "check")
    _, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, "another scripts/live is running with this state home" in err) == (11, True)
    first.send_signal(signal.SIGINT)
    client.put_faults(cold_workspace.cloud, [])
    finish(first, 130)
