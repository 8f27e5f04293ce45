"""What `doctor` looks at on this machine: the home, the key, the programs that some commands need."""

import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from cloudgpu.app.diagnostics.check import Check
from cloudgpu.errors import CloudGpuError
from cloudgpu.paths import Home
from cloudgpu.rehearsal import client as rehearsal
from cloudgpu.settings import Settings
from cloudgpu.ssh.keys import read_public

_GIB = 1 << 30
_LOW_GIB = 2
_PROGRAM_S = 20
_SIMULATOR = ("moto", "asyncssh")


def of(settings: Settings, home: Home) -> tuple[Callable[[], Check], ...]:
    """Everything that is looked at, in the order in which it is told."""
    return (
        lambda: state_home(home),
        lambda: ssh_key(settings.ssh_key, settings.key_name),
        lambda: pulumi_cli(needed=settings.engine == "pulumi", named=settings.pulumi_command),
        lambda: session_plugin(needed=settings.reach == "ssm", named=settings.session_manager_plugin),
        docker,
        lambda: rehearsal_cloud(home),
    )


def state_home(home: Home) -> Check:
    """Whether the state home can be written, and how much room it has."""
    try:
        free_gib = shutil.disk_usage(home.ensure().root).free / _GIB
    except CloudGpuError as err:
        return Check("state home", "failed", err.message, err.hint)
    detail = f"{home.root}, {free_gib:.0f} GiB free"
    if free_gib < _LOW_GIB:
        return Check("state home", "warning", detail, "free some space, or point CLOUDGPU_HOME at another disk")
    return Check("state home", "ok", detail)


def ssh_key(path: Path, key_name: str) -> Check:
    """The key that nodes are reached with; it is made when first needed."""
    if not path.exists():
        if key_name:
            fix = f"set ssh_key to the private key of the EC2 key pair {key_name}"
            return Check("SSH key", "failed", f"{path} does not exist, and key_name is set", fix)
        return Check("SSH key", "ok", f"{path} will be made at the first `up`")
    try:
        return Check("SSH key", "ok", f"{path} {read_public(path).fingerprint}")
    except CloudGpuError as err:
        return Check("SSH key", "failed", err.message, err.hint)


def pulumi_cli(*, needed: bool, named: str = "") -> Check:
    """The Pulumi CLI, which only the pulumi engine needs; `named` is where the settings say it is."""
    fix = "https://www.pulumi.com/docs/install/; the direct engine does without it"
    return _program("Pulumi CLI", (named or "pulumi", "version"), needed=needed, fix=fix)


def session_plugin(*, needed: bool, named: str = "") -> Check:
    """What carries SSH in sessions of Session Manager, which only `reach = ssm` needs."""
    fix = "install the Session Manager plugin from AWS, 1.2.497 or newer; `reach = direct` does without it"
    return _program("Session Manager plugin", (named or "session-manager-plugin", "--version"), needed=needed, fix=fix)


def docker() -> Check:
    """Docker with a running engine, which only building images needs."""
    command = ("docker", "version", "--format", "{{.Server.Version}}")
    return _program("Docker", command, needed=False, fix="only for building the images of images/ on this machine")


def rehearsal_cloud(home: Home) -> Check:
    """Whether this home's rehearsal cloud runs, or could."""
    name = "rehearsal cloud"
    missing = [one for one in _SIMULATOR if importlib.util.find_spec(one) is None]
    if missing:
        return Check(name, "failed", f"{', '.join(missing)} cannot be imported", "install cloudgpu again")
    try:
        status = rehearsal.status(home)
    except CloudGpuError as err:
        return Check(name, "failed", err.message, err.hint)
    if status.cloud is not None:
        return Check(name, "ok", f"running at {status.cloud.url}, {len(status.nodes)} nodes")
    return _could_listen(name)


def _could_listen(name: str) -> Check:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            return Check(name, "ok", "not running; it starts by itself when it is needed")
    except OSError as err:
        return Check(name, "failed", f"127.0.0.1 cannot be listened on: {err.strerror}", "bring the loopback up")


def _program(name: str, command: Sequence[str], *, needed: bool, fix: str) -> Check:
    """What a program says of its version; one that is not needed may be missing."""
    absent = Check(name, "failed" if needed else "warning", f"{command[0]} is not on the PATH", fix)
    if shutil.which(command[0]) is None:
        return absent
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROGRAM_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        return Check(name, absent.state, f"{command[0]} does not answer: {err}", fix)
    said = (done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return Check(name, "ok", said) if done.returncode == 0 else Check(name, absent.state, said, fix)
