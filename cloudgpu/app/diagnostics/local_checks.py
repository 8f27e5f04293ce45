"""Checks that `doctor` runs on this machine: state home, SSH key and required programs."""

import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from cloudgpu.app.diagnostics.check import Diagnosis
from cloudgpu.errors import CloudGpuError
from cloudgpu.paths import Home
from cloudgpu.rehearsal import client as rehearsal
from cloudgpu.settings import Settings
from cloudgpu.ssh.keys import read_public
from cloudgpu.text import plural

_GIB = 1 << 30
_LOW_GIB = 2
_PROGRAM_S = 20
_SIMULATOR = ("moto", "asyncssh")


def machine_checks(settings: Settings, home: Home) -> tuple[Callable[[], Diagnosis], ...]:
    """Return the checks in the order in which they are reported."""
    return (
        lambda: state_home(home),
        lambda: ssh_key(settings.ssh_key, settings.key_name),
        lambda: pulumi_cli(needed=settings.engine == "pulumi", named=settings.pulumi_command),
        lambda: session_plugin(needed=settings.reach == "ssm", named=settings.session_manager_plugin),
        docker,
        lambda: rehearsal_cloud(home),
    )


def state_home(home: Home) -> Diagnosis:
    """Check that the state home is writable and has free space, creating the directory if it does not exist."""
    try:
        free_gib = shutil.disk_usage(home.ensure().root).free / _GIB
    except CloudGpuError as err:
        return Diagnosis("state home", "failed", err.message, err.hint)
    detail = f"{home.root}, {free_gib:.0f} GiB free"
    if free_gib < _LOW_GIB:
        return Diagnosis(
            "state home", "warning", detail, "free some space, or set CLOUDGPU_HOME to a directory on another disk"
        )
    return Diagnosis("state home", "ok", detail)


def ssh_key(path: Path, key_name: str) -> Diagnosis:
    """Check the SSH key for the nodes. The first `up` creates the key unless the settings name an EC2 key pair."""
    if not path.exists():
        if key_name:
            fix = f"set ssh_key to the private key of the EC2 key pair {key_name}"
            return Diagnosis("SSH key", "failed", f"{path} does not exist, and key_name is set", fix)
        return Diagnosis("SSH key", "ok", f"{path} will be created by the first `up`")
    try:
        return Diagnosis("SSH key", "ok", f"{path} {read_public(path).fingerprint}")
    except CloudGpuError as err:
        return Diagnosis("SSH key", "failed", err.message, err.hint)


def pulumi_cli(*, needed: bool, named: str = "") -> Diagnosis:
    """Check the Pulumi CLI, which only the pulumi engine needs. `named` is the path from the settings, or empty."""
    fix = "see https://www.pulumi.com/docs/install/; the direct engine does not need it"
    return _program("Pulumi CLI", (named or "pulumi", "version"), needed=needed, fix=fix)


def session_plugin(*, needed: bool, named: str = "") -> Diagnosis:
    """Check the Session Manager plugin, which is needed only with `reach = ssm`."""
    fix = "install the Session Manager plugin from AWS, 1.2.497 or newer; `reach = direct` does not need it"
    return _program("Session Manager plugin", (named or "session-manager-plugin", "--version"), needed=needed, fix=fix)


def docker() -> Diagnosis:
    """Check that Docker, which is needed only to build images, is running."""
    command = ("docker", "version", "--format", "{{.Server.Version}}")
    return _program(
        "Docker", command, needed=False, fix="install Docker if you build the images in images/ on this machine"
    )


def rehearsal_cloud(home: Home) -> Diagnosis:
    """Check that this state home's rehearsal cloud is running or can be started."""
    name = "rehearsal cloud"
    missing = [module for module in _SIMULATOR if importlib.util.find_spec(module) is None]
    if missing:
        return Diagnosis(name, "failed", f"{', '.join(missing)} cannot be imported", "reinstall cloudgpu")
    try:
        status = rehearsal.status(home)
    except CloudGpuError as err:
        return Diagnosis(name, "failed", err.message, err.hint)
    if status.cloud is not None:
        return Diagnosis(name, "ok", f"running at {status.cloud.url}, {plural(len(status.nodes), 'node')}")
    return _could_listen(name)


def _could_listen(name: str) -> Diagnosis:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            return Diagnosis(name, "ok", "not running; it is started when needed")
    except OSError as err:
        return Diagnosis(
            name, "failed", f"cannot listen on 127.0.0.1: {err.strerror}", "bring the loopback interface up"
        )


def _program(name: str, command: Sequence[str], *, needed: bool, fix: str) -> Diagnosis:
    """Check a program by running its version command. A broken or missing program is a failure only if needed."""
    absent = Diagnosis(name, "failed" if needed else "warning", f"{command[0]} is not on the PATH", fix)
    if shutil.which(command[0]) is None:
        return absent
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROGRAM_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        return Diagnosis(name, absent.state, f"cannot run {command[0]}: {err}", fix)
    output = (done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return Diagnosis(name, "ok", output) if done.returncode == 0 else Diagnosis(name, absent.state, output, fix)
