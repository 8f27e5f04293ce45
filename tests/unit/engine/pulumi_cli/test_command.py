"""Run the Pulumi CLI, replaced by a small program that reports its arguments and environment."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pulumi.automation import CommandError

from cloudgpu.clock import SystemClock
from cloudgpu.engine.plugin.provider import PARENT_COMMAND_VARIABLE
from cloudgpu.engine.pulumi_cli.command import PulumiCommand, stop_abandoned_cli, was_command_killed
from cloudgpu.errors import BusyError, CloudError, UsageError
from cloudgpu.processes import process_start, this_system

STAND_IN = """#!{python}
import json, os, signal, sys, time
if sys.argv[1:] == ["version"]:
    print("{version}")
    raise SystemExit(0)
if "wait" in sys.argv:
    # os.write, because a signal may arrive in the middle of a print. The reader may have been killed.
    def write(line):
        try:
            os.write(1, line)
        except BrokenPipeError:
            pass
    def asked(number, frame):
        write(b"recorded what was under way\\n")
        raise SystemExit(3)
    signal.signal(signal.SIGINT, asked)
    write(b"ready\\n")
    time.sleep(60)
seen = dict(session=os.getsid(0), args=sys.argv[1:], env=dict(os.environ), stdin=sys.stdin.read(), cwd=os.getcwd())
seen["note"] = open(os.environ["NOTE"]).read() if "NOTE" in os.environ else ""
print(json.dumps(seen))
print("trouble", file=sys.stderr)
raise SystemExit(4 if "fail" in sys.argv else 0)
"""


@pytest.fixture
def stand_in(tmp_path):
    def make(version="v3.260.0") -> Path:
        path = tmp_path / "pulumi"
        path.write_text(STAND_IN.format(python=sys.executable, version=version))
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def command(stand_in, tmp_path):
    note = tmp_path / "running"
    return PulumiCommand(stand_in(), {"GIVEN": "1", "NOTE": str(note)}, note)


def test_cli_gets_only_given_arguments_and_environment(command, tmp_path, monkeypatch):
    monkeypatch.setenv("PULUMI_ACCESS_TOKEN", "theirs")
    lines = []
    done = command.run(["up", "--yes"], str(tmp_path), {"MORE": "2"}, lines.append)
    seen = json.loads(done.stdout)
    assert seen["args"] == ["--non-interactive", "up", "--yes"]
    assert seen["cwd"] == str(tmp_path)
    assert seen["session"] != os.getsid(0)  # Ctrl-C of the terminal must not reach it beside ours
    assert {"GIVEN", "MORE"} <= seen["env"].keys()
    assert "PULUMI_ACCESS_TOKEN" not in seen["env"]
    assert seen["env"][PARENT_COMMAND_VARIABLE] == f"{os.getpid()}:{process_start(os.getpid())}"
    assert lines == [done.stdout]
    assert done.stderr == "trouble"


def test_secret_is_passed_by_stdin_not_arguments(command, tmp_path):
    seen = json.loads(command.feed(["config", "set", "key"], str(tmp_path), "hidden").stdout)
    assert seen["stdin"] == "hidden"
    assert "hidden" not in str(seen["args"]) + str(seen["env"])


def test_pid_file_exists_only_while_cli_runs(command, tmp_path):
    seen = json.loads(command.run(["up"], str(tmp_path), {}).stdout)
    noted = json.loads(seen["note"])
    assert noted["pid"] > 0
    assert noted["start"]
    assert not was_command_killed(tmp_path / "running")
    with pytest.raises(CommandError, match="trouble"):
        command.run(["fail"], str(tmp_path), {})
    assert not was_command_killed(tmp_path / "running")


@pytest.mark.parametrize("version", ["v2.9.0", "v3.199.9", "what"])
def test_outdated_or_invalid_cli_is_rejected(stand_in, tmp_path, version):
    with pytest.raises(UsageError):
        PulumiCommand(stand_in(version), {}, tmp_path / "running")


def test_ctrl_c_is_forwarded_once_and_awaited(command, tmp_path):
    lines = []

    def interrupt(line):
        lines.append(line)
        if line == "ready":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        command.run(["wait"], str(tmp_path), {}, interrupt)
    assert lines == ["ready", "recorded what was under way"]
    assert not was_command_killed(tmp_path / "running")


def test_killed_cli_leaves_pid_file(command, tmp_path):
    def kill(line):
        os.kill(json.loads((tmp_path / "running").read_text())["pid"], signal.SIGKILL)

    with pytest.raises(CommandError):
        command.run(["wait"], str(tmp_path), {}, kill)
    assert was_command_killed(tmp_path / "running")
    waited = []
    stop_abandoned_cli(tmp_path / "running", SystemClock(), waited.append)
    assert waited == []


def test_cli_of_another_machine_or_container_is_unknown_not_dead(command, tmp_path):
    """Its process ID means nothing here: the process with this ID must be neither killed nor taken for the CLI."""
    note = tmp_path / "running"
    note.write_text(json.dumps({"pid": os.getppid(), "start": "1", "system": "m/boot/pid:[1]", "host": "login-2"}))
    with pytest.raises(BusyError, match=rf"in another container, login-2 \(process {os.getppid()}\)") as caught:
        stop_abandoned_cli(note, SystemClock(), lambda _: None)
    assert f"rm {note}" in caught.value.hint
    # Before a reboot of this machine, it ended with the machine.
    recorded = {"pid": os.getppid(), "start": process_start(os.getppid()), "host": "here"}
    note.write_text(json.dumps({**recorded, "system": str(replace(this_system(), boot="earlier"))}))
    stop_abandoned_cli(note, SystemClock(), lambda _: pytest.fail("another process is not the CLI"))


def test_note_of_a_cli_names_its_system(command, tmp_path):
    seen = []

    def look(_line):
        seen.append(json.loads((tmp_path / "running").read_text()))
        os.kill(seen[0]["pid"], signal.SIGINT)

    with contextlib.suppress(CommandError):
        command.run(["wait"], str(tmp_path), {}, look)
    assert (seen[0]["system"], seen[0]["host"]) == (str(this_system()), socket.gethostname())


def test_abandoned_cli_is_stopped(stand_in, tmp_path):
    note = tmp_path / "running"
    with subprocess.Popen([stand_in(), "wait"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        note.write_text(json.dumps({"pid": process.pid, "start": process_start(process.pid)}))
        reaper = threading.Thread(target=process.wait)
        reaper.start()
        waited = []
        stop_abandoned_cli(note, SystemClock(), waited.append)
        reaper.join()
    assert waited == [process.pid]
    assert process.returncode == 3


def test_reused_pid_of_other_process_is_not_killed(tmp_path):
    note = tmp_path / "running"
    with subprocess.Popen(["sleep", "60"]) as process:
        for text in (json.dumps({"pid": process.pid, "start": "1"}), "{", json.dumps({"pid": "x"})):
            note.write_text(text)
            stop_abandoned_cli(note, SystemClock(), lambda pid: pytest.fail(str(pid)))
            assert was_command_killed(note)
        assert process.poll() is None
        process.kill()


def test_cli_killed_during_version_check_raises_cloud_error(tmp_path):
    """With `UsageError`, `down` would continue as if no CLI were installed, and leave the stack behind."""
    path = tmp_path / "pulumi"
    path.write_text("#!/bin/sh\nkill -9 $$\n")
    path.chmod(0o755)
    with pytest.raises(CloudError, match="was killed by signal 9"):
        PulumiCommand(path, {}, tmp_path / "running")


def test_pid_file_is_written_before_cli_starts(stand_in, tmp_path):
    """The command may be killed right after starting the CLI; only the file then tells that it runs."""
    note, program = tmp_path / "running", stand_in()
    code = (
        "import os, subprocess, sys; from pathlib import Path; from cloudgpu.engine.pulumi_cli import command;"
        "real = subprocess.Popen;\n"
        "class Dies(real):\n"
        "    def __init__(self, *given, **named):\n"
        "        super().__init__(*given, **named)\n"
        "        if 'wait' in given[0]: os.kill(os.getpid(), 9)\n"
        "subprocess.Popen = Dies\n"
        f"pulumi = command.PulumiCommand(Path({str(program)!r}), {{}}, Path({str(note)!r}))\n"
        f"pulumi.run(['wait'], {str(tmp_path)!r}, {{}})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while not note.exists():
        assert time.monotonic() < deadline, "nothing was noted"
        time.sleep(0.02)
    noted = json.loads(note.read_text())
    assert process_start(noted["pid"]) == noted["start"] != ""
    stop_abandoned_cli(note, SystemClock(), lambda _: None)
    assert process_start(noted["pid"]) == ""


def test_truncated_pid_file_does_not_hide_running_cli(stand_in, tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    note = folder / "running"
    process = subprocess.Popen([stand_in(), "wait"], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    note.write_text('{"pid": ')
    waited = []
    stop_abandoned_cli(note, SystemClock(), waited.append)
    assert process.wait(10) == 3
    process.stdout.close()
    assert waited == [process.pid]


DIES = """#!{python}
import os, subprocess, sys
if sys.argv[1:] == ["version"]:
    print("v3.260.0")
    raise SystemExit(0)
if "die" in sys.argv:
    # In a process group of its own, as the CLI starts its plugins and its language host.
    host = subprocess.Popen(["sleep", "300"], preexec_fn=os.setpgrp, stdin=-3, stdout=-3, stderr=-3)
    open(os.environ["HOST"], "w").write(str(host.pid))
    if "wait" in sys.argv:
        print("ready", flush=True)
        sys.stdin.read()
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def dying(tmp_path):
    path = tmp_path / "pulumi"
    path.write_text(DIES.format(python=sys.executable))
    path.chmod(0o755)
    note = tmp_path / "running"
    return PulumiCommand(path, {"HOST": str(tmp_path / "host")}, note), note


def test_pid_file_of_killed_cli_survives_read_only_commands(dying, tmp_path):
    """`down` reads the state after its CLI was killed; without the file the stack would stay locked."""
    command, note = dying
    with pytest.raises(CommandError):
        command.run(["destroy", "die"], str(tmp_path), {})
    assert was_command_killed(note)
    command.run(["stack", "export"], str(tmp_path), {})
    assert was_command_killed(note)
    note.unlink()
    command.run(["stack", "export"], str(tmp_path), {})
    assert not was_command_killed(note)


def ends(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while process_start(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.02)
    return True


def test_child_processes_of_killed_cli_are_terminated(dying, tmp_path):
    """Pulumi's language host checks only every five minutes whether its engine still runs."""
    command, _ = dying
    with pytest.raises(CommandError):
        command.run(["up", "die"], str(tmp_path), {})
    assert ends(int((tmp_path / "host").read_text()))


def test_child_processes_of_abandoned_cli_are_terminated(dying, tmp_path):
    command, note = dying
    process = subprocess.Popen(
        [command.command, "up", "die", "wait"],
        env={"HOST": str(tmp_path / "host"), PARENT_COMMAND_VARIABLE: "1:1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    process.stdout.readline()
    note.write_text(json.dumps({"pid": process.pid, "start": process_start(process.pid)}))
    process.communicate()
    host = int((tmp_path / "host").read_text())
    assert process_start(host)
    stop_abandoned_cli(note, SystemClock(), lambda _: None)
    assert ends(host)
