"""Running the CLI, with a small program in its place that says what it was given."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pulumi.automation import CommandError

from cloudgpu.clock import SystemClock
from cloudgpu.errors import UsageError
from cloudgpu.provision.plugin.server import ENDS_WITH
from cloudgpu.provision.processes import process_start
from cloudgpu.provision.pulumi_cli.command import Command, abandoned, end_abandoned

STAND_IN = """#!{python}
import json, os, signal, sys, time
if sys.argv[1:] == ["version"]:
    print("{version}")
    raise SystemExit(0)
if "wait" in sys.argv:
    def asked(number, frame):
        os.write(1, b"recorded what was under way\\n")  # a signal may come in the middle of a print
        raise SystemExit(3)
    signal.signal(signal.SIGINT, asked)
    print("ready", flush=True)
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
    return Command(stand_in(), {"GIVEN": "1", "NOTE": str(note)}, note)


def test_it_gets_exactly_what_it_is_given(command, tmp_path, monkeypatch):
    monkeypatch.setenv("PULUMI_ACCESS_TOKEN", "theirs")
    lines = []
    done = command.run(["up", "--yes"], str(tmp_path), {"MORE": "2"}, lines.append)
    seen = json.loads(done.stdout)
    assert seen["args"] == ["--non-interactive", "up", "--yes"]
    assert seen["cwd"] == str(tmp_path)
    assert seen["session"] != os.getsid(0)  # Ctrl-C of the terminal must not reach it beside ours
    assert {"GIVEN", "MORE"} <= seen["env"].keys()
    assert "PULUMI_ACCESS_TOKEN" not in seen["env"]
    assert seen["env"][ENDS_WITH] == f"{os.getpid()}:{process_start(os.getpid())}"
    assert lines == [done.stdout]
    assert done.stderr == "trouble"


def test_a_secret_goes_in_by_standard_input_and_not_among_the_arguments(command, tmp_path):
    seen = json.loads(command.feed(["config", "set", "key"], str(tmp_path), "hidden").stdout)
    assert seen["stdin"] == "hidden"
    assert "hidden" not in str(seen["args"]) + str(seen["env"])


def test_the_process_is_noted_while_it_runs_and_no_longer(command, tmp_path):
    seen = json.loads(command.run(["up"], str(tmp_path), {}).stdout)
    noted = json.loads(seen["note"])
    assert noted["pid"] > 0
    assert noted["start"]
    assert not abandoned(tmp_path / "running")
    with pytest.raises(CommandError, match="trouble"):
        command.run(["fail"], str(tmp_path), {})
    assert not abandoned(tmp_path / "running")


@pytest.mark.parametrize("version", ["v2.9.0", "v3.199.9", "what"])
def test_a_cli_that_is_too_old_or_none_is_refused(stand_in, tmp_path, version):
    with pytest.raises(UsageError):
        Command(stand_in(version), {}, tmp_path / "running")


def test_ctrl_c_is_handed_on_once_and_waited_for(command, tmp_path):
    lines = []

    def interrupt(line):
        lines.append(line)
        if line == "ready":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        command.run(["wait"], str(tmp_path), {}, interrupt)
    assert lines == ["ready", "recorded what was under way"]
    assert not abandoned(tmp_path / "running")


def test_a_cli_that_was_killed_leaves_its_note(command, tmp_path):
    def kill(line):
        os.kill(json.loads((tmp_path / "running").read_text())["pid"], signal.SIGKILL)

    with pytest.raises(CommandError):
        command.run(["wait"], str(tmp_path), {}, kill)
    assert abandoned(tmp_path / "running")
    waited = []
    end_abandoned(tmp_path / "running", SystemClock(), waited.append)
    assert waited == []


def test_a_cli_whose_command_was_killed_is_ended(stand_in, tmp_path):
    note = tmp_path / "running"
    with subprocess.Popen([stand_in(), "wait"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        note.write_text(json.dumps({"pid": process.pid, "start": process_start(process.pid)}))
        reaper = threading.Thread(target=process.wait)
        reaper.start()
        waited = []
        end_abandoned(note, SystemClock(), waited.append)
        reaper.join()
    assert waited == [process.pid]
    assert process.returncode == 3


def test_another_process_of_the_same_number_is_left_alone(tmp_path):
    note = tmp_path / "running"
    with subprocess.Popen(["sleep", "60"]) as process:
        for text in (json.dumps({"pid": process.pid, "start": "1"}), "{", json.dumps({"pid": "x"})):
            note.write_text(text)
            end_abandoned(note, SystemClock(), lambda pid: pytest.fail(str(pid)))
            assert abandoned(note)
        assert process.poll() is None
        process.kill()
