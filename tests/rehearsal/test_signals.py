"""SIGINT, SIGTERM and SIGHUP: the first ends a command cleanly, the second at once; both list what still runs."""

import json
import signal
import sys
import time

import pytest

from tests.pseudo_terminal import PseudoTerminal

pytestmark = pytest.mark.rehearsal

LIMIT_S = 120
SOON_S = 30
"""Far below the time limits of the waits, and far above what a loaded machine needs to end a command."""
STUBBORN = """
    import os, signal, time

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"rank {os.environ['RANK']} is deaf", flush=True)
    time.sleep(600)
"""


def until_line(stream, text):
    for line in stream:
        if text in line:
            return
    pytest.fail(f"{text!r} was never said")


def check_last_lines(lines, run):
    """Check that the last lines say what runs, what it costs an hour, and what to type."""
    follow, stop, cluster, delete = lines[-4:]
    assert follow.strip() == f"follow it: cloudgpu attach {run}"
    assert stop.strip() == f"stop it:   cloudgpu cancel {run}"
    assert cluster.startswith(f"cluster {run} is running: 2 x p3dn.24xlarge, $62.")
    assert " an hour (simulated, nothing is charged), until it expires at " in cluster
    assert delete.strip() == f"delete it: cloudgpu down {run}"


def test_signals_end_a_watching_command_but_not_its_run(cold_workspace):
    workspace = cold_workspace
    workspace.recipe()
    run = workspace.json("train", "plain", "--yes", "--detach", "--set", "hang=yes")["run_id"]
    cases = [
        (("attach", run), signal.SIGTERM, 143),
        (("attach", run), signal.SIGHUP, 129),
        (("logs", "-f", run), signal.SIGINT, 130),
    ]
    for args, number, code in cases:
        process = workspace.popen(*args)
        until_line(process.stdout, "==> train" if args[0] == "attach" else "rank 3 of 4")
        time.sleep(0.5)  # into the wait for the next line, where a person would be
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == code, out + err
        assert "Traceback" not in err
        check_last_lines(out.splitlines(), run)
    assert workspace.json("status", "--all")["runs"][0]["state"] == "running"
    workspace.run("down", run, "--yes")
    assert workspace.left() == {}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_second_signal_exits_immediately_while_ranks_are_stopping(workspace, number, code):
    workspace.recipe(script=STUBBORN, checkpoint="{path: ckpt, signal: SIGTERM, grace: 60s}")
    process = workspace.popen("train", "plain", "--yes", "--on-interrupt", "end", "--json")
    until_line(process.stderr, "rank 0 is deaf")
    process.send_signal(signal.SIGTERM)
    until_line(process.stderr, "stopping the ranks")
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT_S)
    assert time.monotonic() - began < 20, "it waited for the ranks"
    assert process.returncode == code, out + err
    assert "Traceback" not in err
    told = json.loads(out)
    assert told["error"]["exit_code"] == code
    run = next(line.split()[1] for line in told["left"] if line.startswith("run "))
    check_last_lines(err.splitlines(), run)
    assert told["left"] == err.splitlines()[-5:]
    workspace.run("down", run, "--yes")
    assert workspace.left() == {}


def test_signal_ignored_by_the_caller_stays_ignored(cold_workspace):
    """This is the situation under `nohup`."""
    workspace = cold_workspace
    workspace.recipe()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = workspace.popen("train", "plain", "--yes", "--json", "--set", "wait_for=go")
    finally:
        signal.signal(signal.SIGHUP, before)
    until_line(process.stderr, "rank 3 of 4")
    process.send_signal(signal.SIGHUP)
    run = workspace.json("status", "--all")["runs"][0]["run_id"]
    for node in ("0", "1"):
        workspace.run("ssh", run, "--node", node, "--", "touch", f".cloudgpu/runs/{run}/work/go")
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, out + err
    assert json.loads(out)["state"] == "succeeded"
    assert workspace.left() == {}


def test_wait_for_nodes_that_refuse_ssh_ends_at_signals_and_without_the_key(workspace):
    """The wait would take ten minutes, and the nodes are billed."""
    workspace.recipe()
    workspace.run("rehearsal", "fault", "apply", "sshd-dies", "--set", "count=2")
    up = ("up", "plain", "--yes")

    process = workspace.popen(*up)
    until_line(process.stdout, "connecting to 2 nodes")
    time.sleep(1)  # until the connections are refused
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 143, out + err
    assert "delete it now: cloudgpu down plain" in out

    terminal = PseudoTerminal(
        [sys.executable, "-m", "cloudgpu", *up],
        environ={**workspace.environment, "TERM": "xterm-256color"},
        columns=120,
        cwd=workspace.work,
        start=workspace.start,
    )
    try:
        terminal.until(lambda text: "waiting for SSH" in text, LIMIT_S)
        terminal.write("\x03")
        began = time.monotonic()
        code, text = terminal.end()
    finally:
        terminal.close()
    assert (code, time.monotonic() - began < SOON_S) == (130, True), text
    assert "delete it now: cloudgpu down plain" in text

    process = workspace.popen(*up)
    until_line(process.stdout, "connecting to 2 nodes")
    workspace.home.ssh_key.unlink()
    out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 9, out + err
    assert "cannot read the SSH key" in err
    assert "cloudgpu down plain" in err

    workspace.run("rehearsal", "fault", "apply", "slow-terminate", "--set", "looks=100000")
    process = workspace.popen("down", "plain", "--yes")
    until_line(process.stdout, "2 nodes in us-east-1 are shutting down and no longer billed")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 130, out + err
    assert "to continue: cloudgpu down plain" in out
    workspace.run("rehearsal", "fault", "clear")
    assert workspace.json("down", "plain")["cost"]["estimated"] is False
    assert workspace.left() == {}
