"""`cloud-init schema` accepts the user data of nodes, and systemd accepts the timer that it arms.

cloud-init reads the user data from the rehearsal's metadata service, so what it validates is what a node gets.
"""

import os
import re
import shlex
import shutil
import subprocess
from datetime import UTC, datetime

import pytest

from gpu_cluster.user_data import expiry_hook
from tests.system.cloud_init import machine
from tests.system.cloud_init.samples import CONFIG, OURS

pytestmark = pytest.mark.system
VALIDATE = "cloud-init init --local && cloud-init init && cloud-init schema --system"


def with_config(user_data: bytes, config: str) -> bytes:
    """Return user data with one more part: cloud-init 22.4 validates only user data that has a cloud-config part."""
    boundary = re.search(r'boundary="([^"]+)"', user_data.decode())[1]
    head, _, _ = user_data.decode().rpartition(f"--{boundary}--")
    return f"{head}--{boundary}\nContent-Type: {CONFIG}\n\n#cloud-config\n{config}\n--{boundary}--\n".encode()


@pytest.mark.parametrize("name", ["gpu", "expiry-only"])
def test_cloud_init_schema_accepts_the_user_data_of_a_node(tmp_path, name):
    done = machine.build(tmp_path, with_config(OURS[name], "{}")).run(VALIDATE, metadata=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["Valid cloud-config: system userdata"]), done.stderr


def test_cloud_init_schema_reads_every_part_of_the_user_data(tmp_path):
    wrong = with_config(OURS["expiry-only"], "ssh_pwauth: [1]")
    done = machine.build(tmp_path, wrong).run(VALIDATE, metadata=True, check=False)
    assert done.returncode == 1
    assert "ssh_pwauth" in done.stdout + done.stderr


def test_systemd_accepts_the_timer_that_the_expiry_hook_arms(tmp_path):
    timer, service, calendar = armed_units(tmp_path, datetime(2099, 3, 4, 5, 6, 7, tzinfo=UTC))
    done = verified(tmp_path, timer, service)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    shown = subprocess.run(["systemd-analyze", "calendar", calendar], capture_output=True, text=True, check=True)
    assert "Normalized form: 2099-03-04 05:06:07 UTC" in shown.stdout


def test_systemd_rejects_a_property_that_a_timer_does_not_have(tmp_path):
    timer, service, _ = armed_units(tmp_path, datetime(2099, 3, 4, 5, 6, 7, tzinfo=UTC))
    done = verified(tmp_path, timer.replace("AccuracySec", "AccuracySeconds"), service)
    assert "AccuracySeconds" in done.stderr


def armed_units(tmp_path, moment):
    """Run the expiry hook, and return the timer, the service and the calendar expression that systemd-run is given."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, body in {"systemd-run": 'printf "%s\\n" "$@" >"$ASKED"', "systemctl": "exit 3"}.items():
        (commands / name).write_text(f"#!/bin/sh\n{body}\n")
        (commands / name).chmod(0o755)
    asked = tmp_path / "asked"
    environment = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "CLOUDGPU_NODE_ROOT": str(tmp_path),
        "ASKED": str(asked),
    }
    hook = tmp_path / "hook"
    hook.write_text(expiry_hook(moment))
    subprocess.run(["sh", hook], env=environment, check=True, capture_output=True)
    words = asked.read_text().splitlines()
    values = {"--timer-property": [], "--property": [], "--on-calendar": [], "--unit": []}
    while words and words[0].startswith("--"):
        name, _, value = words.pop(0).partition("=")
        if name != "--no-block":
            values[name].append(value)
    (calendar,) = values["--on-calendar"]
    sections = {"timer": ("[Unit]\n", f"[Timer]\nOnCalendar={calendar}\n"), "service": ("[Unit]\n", "[Service]\n")}
    for key, kind in (("--timer-property", "timer"), ("--property", "service")):
        head, body = sections[kind]
        unit = [line for line in values[key] if line.startswith("DefaultDependencies=")]
        own = [line for line in values[key] if line not in unit]
        sections[kind] = (head + "".join(f"{line}\n" for line in unit), body + "".join(f"{line}\n" for line in own))
    program = subprocess.run(["sh", "-c", f"command -v {words[0]}"], capture_output=True, text=True, check=True)
    run = f"ExecStart={program.stdout.strip()} {shlex.join(words[1:])}\n"
    return "".join(sections["timer"]), "".join(sections["service"]) + run, calendar


def verified(tmp_path, timer, service):
    """Return what `systemd-analyze verify` says about a timer and its service."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze: scripts/test-parts")
    (tmp_path / "expiry.timer").write_text(timer)
    (tmp_path / "expiry.service").write_text(service)
    return subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "expiry.timer", tmp_path / "expiry.service"],
        capture_output=True,
        text=True,
        check=False,
    )
