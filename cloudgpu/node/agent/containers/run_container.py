"""Containers in which the agent runs programs: those of a node's ranks, or a recipe's setup. Parse their requests.

The container of the ranks is started before the gang forms, and removed before the final status report. A login
session that predates the user's membership in the docker group uses Docker through `sg`.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from ..untrusted_data import AgentError

_START_S = 180.0
"""Time limit for starting a container, in seconds. The first container of an image with many layers starts slowly."""
_REMOVE_S = 12.0
"""Time limit for removal, in seconds. It is shorter than `lost_s`, after which other nodes consider this node lost."""
_LAST_TRIES_S = (0.0, 1.0, 2.0, 5.0, 10.0)
"""Delays before attempts to remove what the engine may still be creating, in seconds."""
_OWN_S = 8.0
_TIMED_OUT = 124
_SMI = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
_EMPTY = ': >"/.cloudgpu/nccl/$1"'
_KILL = 'kill -s "$1" -- "$2"'
_FAULTS = (
    ("limits", r"setting rlimit", "the engine cannot raise a resource limit", "{limit}"),
    (
        "gpu",
        r"could not select device driver|nvidia-container-cli|unknown or invalid runtime name: nvidia",
        "the engine cannot provide GPUs",
        "install nvidia-container-toolkit, run `sudo nvidia-ctk runtime configure --runtime=docker` and restart Docker",
    ),
    (
        "no-shell",
        r'exec: "?(?:sh|sleep)"?: executable file not found',
        "the image has no `sh` or no `sleep`",
        "use an image that contains `sh` and `sleep`",
    ),
    (
        "mount",
        r"mount|bind source path",
        "a directory cannot be mounted",
        "check that the directory exists on the node",
    ),
    (
        "architecture",
        r"exec format error",
        "the image is for another architecture",
        "choose a tag for this node's architecture",
    ),
    ("disk-full", r"no space left on device", "the disk is full", "use a larger disk: resources.disk"),
    (
        "flags",
        r"unknown flag|unknown shorthand|invalid argument",
        "an option is invalid",
        "{flag}",
    ),
)
_NOISE = re.compile(r"^docker: |\b[0-9a-f]{64}\b|(?:See|Run) 'docker run --help'.*", re.MULTILINE)
"""Text that the docker client adds to the engine's error."""
_LIMITS = {
    "6": "lower the process limit: --ulimit nproc",
    "7": "lower the limit on open files: --ulimit nofile",
    "8": "set environment.container.memlock to null",
    "3": "set environment.container.stack_mib to null",
}
_ENTERED = "CLOUDGPU_AGENT_ENTERED"
_UNIX = "unix://"


@dataclass(frozen=True)
class ContainerSpec:
    """The container that runs a node's ranks or a recipe's setup.

    Attributes:
        image: Name of the image, for display.
        client: Leading arguments of every `docker` command line for the node's engine.
        run: Rest of the command line that starts the container.
        gpus: True if the container gets GPUs.
        devices: Indices of the GPUs that the container gets; empty for all.
        own: Directories in the container whose files are chowned to the node's user before the container is removed.
        plugin_check: Command that looks for NCCL's EFA plugin in the container; empty to omit the check.
    """

    name: str
    image: str
    client: tuple[str, ...]
    run: tuple[str, ...]
    gpus: bool = False
    devices: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    plugin_check: tuple[str, ...] = ()


def setup_image_name(key: str) -> str:
    """Return the name of the local image that a setup makes."""
    return f"cloudgpu-setup:{key}"


def setup_container_name(key: str) -> str:
    """Return the name of the container of a setup."""
    return f"cloudgpu-setup-{key}"


def read_container(request: Any, where: str, *, image: str = "image") -> ContainerSpec:  # noqa: ANN401 - unchecked input
    """Parse and validate the description of a container.

    Args:
        request: The container's part of a request.
        where: What the fields belong to, for messages, such as `start: container`.
        image: Field that has the name of the image for display.
    """
    if not isinstance(request, dict):
        raise AgentError(f"{where} must be an object")
    return ContainerSpec(
        read_text(request, "name", where),
        read_text(request, image, where),
        read_words(request, "client", where),
        read_words(request, "run", where),
        bool(request.get("gpus")),
        read_words(request, "devices", where, empty=True),
        read_words(request, "own", where, empty=True),
        read_words(request, "plugin_check", where, empty=True),
    )


def read_text(request: dict[str, Any], name: str, where: str) -> str:
    """Return a string that is not empty and can be an argument of a command."""
    value = request.get(name)
    if not isinstance(value, str) or not value or "\0" in value:
        raise AgentError(f"{where}.{name} must be text")
    return value


def read_words(request: dict[str, Any], name: str, where: str, *, empty: bool = False) -> tuple[str, ...]:
    """Return the words of a command line.

    Args:
        request: Object with the field.
        name: Name of the field.
        where: What the field belongs to, for messages.
        empty: True if the field may be missing or empty.
    """
    words = request.get(name) or []
    if not isinstance(words, list) or not all(isinstance(word, str) and "\0" not in word for word in words):
        raise AgentError(f"{where}.{name} must be a list of strings")
    if not words and not empty:
        raise AgentError(f"{where}.{name} must not be empty")
    return tuple(words)


class RankContainer:
    """A container of a node's ranks or setup. The watchdog can remove it too, because removal needs only the name."""

    def __init__(self, spec: ContainerSpec) -> None:
        self._spec = spec
        self.image = spec.image
        """The image's name, for messages."""
        self._files = ""
        self._made = False

    @property
    def exists(self) -> bool:
        """True if the container may exist."""
        return self._made

    def create(self, run_dir: str) -> None:
        """Start the container and check that it has the GPUs that the run is meant to use."""
        # Do not use the docker client settings of the node's user, such as plugins, proxies and logins.
        os.environ["DOCKER_CONFIG"] = os.path.join(run_dir, "docker")
        self._files = os.path.join(run_dir, "container")
        os.makedirs(self._files, exist_ok=True)
        os.chmod(self._files, 0o1777)  # noqa: S103 - programs run as any user and write PID files here
        self.remove_by_name()  # an interrupted start may have left a container
        self._made = True
        try:
            code, output = _run([*self._spec.client, *self._spec.run], _START_S)
            if code:
                raise _start_error(self._spec, output)
            if self._spec.gpus:
                self._check_gpus()
        except AgentError:
            self.remove()
            raise

    def group(self, inside: str) -> int | None:
        """Return a program's process group, as numbered in the container, or None if the program has not started."""
        try:
            with open(os.path.join(self._files, f"{inside}.pid"), encoding="ascii") as stream:
                return int(stream.read())
        except (OSError, ValueError):
            return None

    def signal(self, pid: int, number: int) -> None:
        """Signal a process in the container by PID, or a process group by negative PID. Return without waiting."""
        kill = ("sh", "-c", _KILL, "cloudgpu", signal.Signals(number).name[3:], str(pid))
        _spawn([*self._spec.client, "exec", "--user", "0", self._spec.name, *kill])

    def empty(self, path: str) -> None:
        """Empty a file of the directory that the container shares with the node. Return without waiting."""
        _spawn([*self._spec.client, "exec", "--user", "0", self._spec.name, "sh", "-c", _EMPTY, "cloudgpu", path])

    def remove(self) -> bool:
        """Remove the container and kill its processes. Return False if Docker did not confirm the removal."""
        if not self._made:
            return True
        self.restore_ownership(_OWN_S)
        removed = self.remove_by_name()
        self._made = not removed
        return removed

    def remove_with_retries(self, also: Callable[[], object] | None = None, *, pending: bool = True) -> None:
        """Remove the container in several attempts with increasing delays. Called by watchdogs.

        Args:
            also: Called in every attempt to remove what was made from the container. May raise `AgentError`.
            pending: True if the engine may still be creating something, so that a successful attempt is not the last.
        """
        for wait_s in _LAST_TRIES_S:
            time.sleep(wait_s)
            removed = self.remove_by_name()
            if also is not None:
                with suppress(AgentError):
                    also()
            if removed and not pending:
                return

    def remove_by_name(self) -> bool:
        """Remove the container, also one that another process started. Return False if Docker did not confirm it."""
        code, output = _run([*self._spec.client, "rm", "--force", "--volumes", self._spec.name], _REMOVE_S)
        return code == 0 or "No such container" in output

    def restore_ownership(self, limit_s: float) -> None:
        """Change the owner of files created in the container to the node's user, so that this user can delete them."""
        if os.getuid() == 0 or not self._spec.own:
            return
        owner = f"{os.getuid()}:{os.getgid()}"
        inside = [*self._spec.client, "exec", "--user", "0", self._spec.name]
        _run([*inside, "chown", "-R", "-h", owner, *self._spec.own], limit_s)

    def _check_gpus(self) -> None:
        """Check the container's GPUs, because without GPUs the run would silently train on the CPU."""
        if shutil.which(_SMI[0]) is None:
            return
        node_code, node_output = _run(_SMI, _START_S)
        inside_code, container_output = _run([*self._spec.client, "exec", self._spec.name, *_SMI], _START_S)
        expected, shown = _uuids(node_output), _uuids(container_output)
        if self._spec.devices:
            expected = {uuid for index, uuid in enumerate(node_output.split()) if str(index) in self._spec.devices}
        if node_code or inside_code or shown != expected:
            problem = "nvidia-smi shows different GPUs in the container than the run should use"
            if len(shown) != len(expected):
                problem += f": {len(shown)} instead of {len(expected)}"
            detail = (
                f" ({container_output.strip().splitlines()[-1]})" if inside_code and container_output.strip() else ""
            )
            raise AgentError(
                f"{self._spec.image}: {problem}{detail}",
                code="gpu",
                hint="check the image's NVIDIA_VISIBLE_DEVICES, and that NVIDIA_DRIVER_CAPABILITIES includes `utility`",
            )


def why_not_started(container: RankContainer, inside: str, program: str, exit_code: int) -> str:
    """Return why a program did not start, or an empty string if the exit code of `docker exec` does not show it."""
    if exit_code == 1 or exit_code >= 125:  # noqa: PLR2004
        if container.group(inside) is None:
            return f"docker could not start {program!r} in the container; see the rank's log"
        if exit_code == 127:  # noqa: PLR2004
            return f"exit code 127: {program!r}, or a command that it runs, was not found in {container.image}"
        if exit_code == 126:  # noqa: PLR2004
            return f"exit code 126: {program!r}, or a command that it runs, is not executable in {container.image}"
    return ""


def _start_error(spec: ContainerSpec, output: str) -> AgentError:
    message = " ".join(_NOISE.sub("", output).split())
    limit = re.search(r"rlimit(?:s for ulimit|\s+type)?\s+(\w+)", message)
    flag = re.search(r"(?:unknown \w+ flag|unknown flag|invalid argument)[^-]*(-[\w-]+)", message)
    known = {
        "limit": _LIMITS.get(limit[1] if limit else "", "lower environment.container.memlock or stack_mib"),
        "flag": f"correct environment.container.flags{f': {flag[1]}' if flag else ''}",
    }
    for code, pattern, problem, hint in _FAULTS:
        if re.search(pattern, message):
            what = f"cannot start a container from {spec.image}: {problem}: {message}"
            return AgentError(what, code=code, hint=hint.format(**known))
    hint = "to find the cause, run the same `docker run` command on the node"
    return AgentError(f"cannot start a container from {spec.image}: {message or 'docker printed nothing'}", hint=hint)


def _uuids(text: str) -> set[str]:
    return set(text.split())


def _run(argv: Sequence[str], limit_s: float) -> tuple[int, str]:
    """Run a command. Return its exit code (124 if it timed out or could not be started) and combined output."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _TIMED_OUT, f"{argv[0]} did not respond within {limit_s:.0f} s"
    except OSError as error:
        return _TIMED_OUT, f"cannot run {argv[0]}: {error.strerror}"
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _spawn(argv: Sequence[str]) -> None:
    """Start a tool without waiting for it. The supervisor reaps the process along with the ranks."""
    actions = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    with suppress(OSError):
        os.posix_spawn(argv[0], list(argv), os.environ, file_actions=actions, setsid=True)


def restart_with_docker_group(host: str, verb: str, spec: dict[str, Any]) -> None:
    """Restart this verb with the socket's group if the user is a member but this login session lacks the group.

    The node's bootstrap adds the user to the group, possibly after this session started. If a restart is unnecessary or
    impossible, this function returns; otherwise it never returns.
    """
    path = host[len(_UNIX) :]
    if _ENTERED in os.environ or not os.path.exists(path) or os.access(path, os.R_OK | os.W_OK):
        return
    try:
        group, user = grp.getgrgid(os.stat(path).st_gid), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return
    tool = shutil.which("sg")
    if tool is None or user not in group.gr_mem:
        return
    # The request may contain secrets, so it is passed on in memory only.
    request = os.memfd_create("request")
    os.write(request, json.dumps(spec).encode())
    os.lseek(request, 0, os.SEEK_SET)
    os.dup2(request, 0)
    os.environ[_ENTERED] = "1"
    os.execv(tool, [tool, group.gr_name, "-c", shlex.join([sys.executable, sys.argv[0], verb])])
