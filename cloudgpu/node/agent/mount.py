"""`mount` and `unmount`: mount a run's datasets as root, with time limits and never over system directories.

Runs can share a mount, and the last run that uses a mount unmounts it. `~/.cloudgpu/mounts/` contains a record of each
mount and the runs that use it. The record is written before the mount is attempted, so that an interrupted mount is
unmounted later.

A mount program forks a server into a new session. This process adopts such orphans, so that it can find and kill every
process of a mount that hangs.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Callable, Dict, Iterator, Sequence

from . import files, proc
from .files import agent_folder
from .untrusted_data import AgentError

_SHOWN = 400
_AFTER_KILL_S = 5.0
_POLL_S = 0.05
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SUDO = ("sudo", "-n")
_SYSTEM = frozenset(
    ["bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var"]
)
_UNMOUNT_S = 20.0
_CHECK_S = 20.0
Emit = Callable[[Dict[str, Any]], None]


@dataclass(frozen=True)
class CommandResult:
    """Exit code of a command and the end of its output.

    The exit code is 124 if the command timed out, and 127 if it could not be started.
    """

    code: int
    text: str
    timed_out: bool = False


def run(argv: Sequence[str], within_s: float) -> CommandResult:
    """Run a command as root, and kill its process group if it has not exited after `within_s` seconds."""
    command = [*([] if os.geteuid() == 0 else _SUDO), *argv]
    env = {**os.environ, "PATH": _search_path()}
    # The output goes to a file, because a server that the command leaves behind would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
            )
        except OSError as error:
            return CommandResult(127, f"cannot run {command[0]}: {error.strerror}")
        try:
            code, timed_out = child.wait(within_s), False
        except subprocess.TimeoutExpired:
            code, timed_out = 124, True
            _kill_group(child)
        return CommandResult(code, _last_output(output), timed_out)


def has_program(program: str) -> bool:
    """Return True if a program is on the PATH that `run` sets for commands."""
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in _search_path().split(":"))


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """Adopt orphaned descendants as children of this process, during the block and after it. Linux only."""
    proc.DeathSignal().adopt_orphans()
    yield


def descendants() -> set[int]:
    """Return the PIDs of all descendants of this process."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit():
            parents.setdefault(_parent(int(entry)), []).append(int(entry))
    pids: set[int] = set()
    to_visit = [os.getpid()]
    while to_visit:
        for child in parents.get(to_visit.pop(), []):
            if child not in pids:
                pids.add(child)
                to_visit.append(child)
    return pids


def kill_new_descendants(before: set[int]) -> None:
    """Kill every descendant of this process that is not in `before`, and wait up to five seconds for them to exit.

    The processes may belong to root, and may fork while they are being killed.
    """
    deadline = time.monotonic() + _AFTER_KILL_S
    while (
        remaining := {pid for pid in descendants() - before if proc.start_mark(pid)}
    ) and time.monotonic() < deadline:
        for pid in remaining:
            _kill(pid)
        time.sleep(_POLL_S)
        _reap()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError:
        subprocess.run([*_SUDO, "kill", "-KILL", str(pid)], capture_output=True, check=False)


def _reap() -> None:
    """Reap adopted processes that have exited."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except PermissionError:
        subprocess.run([*_SUDO, "kill", "-KILL", "--", f"-{child.pid}"], capture_output=True, check=False)
    except ProcessLookupError:
        pass
    try:
        child.wait(_AFTER_KILL_S)
    except subprocess.TimeoutExpired:
        return  # the process is blocked in the kernel, and a lazy unmount releases it


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return int(stat.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _search_path() -> str:
    own = os.environ.get("PATH", "")
    return f"{own}:{_PATH}" if own else _PATH


def _last_output(output: IO[bytes]) -> str:
    output.seek(0)
    lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines()]
    return " / ".join(line for line in lines if line)[-_SHOWN:]


def mount_datasets(spec: dict[str, Any], emit: Emit) -> None:
    """Mount every dataset of a run. If one mount fails, release all mounts of the run."""
    run = _text(spec, "run")
    done: list[str] = []
    reused: list[str] = []
    with adopt_orphans():
        for mount in spec.get("mounts") or []:
            try:
                (done if _mount(mount, run, emit) else reused).append(_text(mount, "name"))
            except AgentError:
                _release(run)
                raise
    emit({"mounted": done, "reused": reused})


def unmount_datasets(spec: dict[str, Any], emit: Emit) -> None:
    """Unmount the datasets that only this run uses; with `all`, unmount the datasets of every run."""
    unmounted, remaining = _release(None if spec.get("all") else _text(spec, "run"))
    emit({"unmounted": unmounted})
    if remaining:
        raise AgentError(
            "still mounted: " + "; ".join(remaining),
            hint="on the node, run `sudo umount --lazy` on these directories",
            code="mounted",
        )


def _mount(mount: dict[str, Any], run: str, emit: Emit) -> bool:
    """Mount a dataset and return True, or add the run to an existing mount of the same source and return False."""
    target = _target(mount, str(mount.get("root") or ""))
    with _record(target) as (path, record):
        requested = {"target": target, "source": _text(mount, "source"), "argv": list(mount["argv"])}
        if record is not None and is_mounted(target):
            if {key: record.get(key) for key in requested} != requested:
                runs = ", ".join(record.get("runs") or []) or "(none)"
                message = f"dataset {mount['name']}: {record['source']} is already mounted at {target} for run {runs}"
                raise AgentError(
                    message, hint="wait until that run has finished, or change the dataset's `to`", code="taken"
                )
            files.write_json(path, {**record, "runs": sorted({*record["runs"], run})})
            return False
        if is_mounted(target):
            message = f"dataset {mount['name']}: another file system is already mounted at {target}"
            raise AgentError(message, hint="unmount that file system, or change the dataset's `to`", code="taken")
        files.write_json(path, {**requested, "runs": [run]})
        _mount_source(mount, target, emit)
    return True


def _mount_source(mount: dict[str, Any], target: str, emit: Emit) -> None:
    what = f"dataset {mount['name']}: {mount['source']}"
    seconds = float(mount.get("seconds") or 60)
    argv = [str(word) for word in mount["argv"]]
    _make_directory(target, what)
    _install(mount, what, emit)
    before = descendants()
    failure = _try_mount(what, str(mount.get("program") or argv[0]), argv, target, seconds)
    if failure is not None:
        kill_new_descendants(before)
        _unmount_target(target)
        raise failure


def _try_mount(what: str, program: str, argv: list[str], target: str, seconds: float) -> AgentError | None:
    """Mount a source and read its root directory. Return the error, or None on success."""
    answer = run(argv, seconds)
    if answer.timed_out:
        hint = "check that the nodes can reach the source (address, security groups, role), or increase data.within"
        return AgentError(f"{what} was not mounted at {target} within {seconds:g} s", hint=hint, code="mount-hangs")
    if answer.code:
        output = f": {answer.text}" if answer.text else ""
        message = f"{what} could not be mounted at {target} ({program} exited with code {answer.code}{output})"
        return AgentError(
            message, hint="check that the nodes have permission to read the source and are on its network", code="mount"
        )
    # Some file systems mount immediately but never respond.
    limit = min(seconds, _CHECK_S)
    check = run(["ls", "-d", f"{target}/."], limit)
    if check.timed_out:
        message = f"{what} was mounted at {target} but did not respond within {limit:g} s"
        return AgentError(message, hint="check that the dataset's server is running", code="mount-hangs")
    if check.code or not is_mounted(target):
        output_text = f": {check.text}" if check.text else ""
        return AgentError(f"{what} was mounted at {target} but cannot be read{output_text}", code="mount")
    return None


def _install(mount: dict[str, Any], what: str, emit: Emit) -> None:
    """Install a missing mount client with the request's install command.

    Requests for self-managed hosts have no install command, so there a missing client is an error.
    """
    program, package = str(mount.get("program") or ""), str(mount.get("package") or "")
    if not program or has_program(program):
        return
    install = str(mount.get("install") or "")
    if not install:
        message = f"{what}: {program} is not installed on this node"
        raise AgentError(message, hint=f"install {package}", code="no-client")
    emit({"progress": f"installing {package}"})
    answer = run(["/bin/sh", "-c", install], 600.0)
    if answer.code or answer.timed_out:
        raise AgentError(f"{what}: {package} could not be installed: {answer.text}", code="no-client")


def unmount_all(folder: str) -> list[str]:
    """Unmount every dataset with a record in `folder`. Return the datasets still mounted, as `TARGET (SOURCE)`."""
    return _release(None, folder)[1]


def _release(run: str | None, folder: str = "") -> tuple[list[str], list[str]]:
    """Release a run's mounts, or all mounts if `run` is None. Return the unmounted and the remaining targets."""
    unmounted, remaining = [], []
    folder = folder or agent_folder("mounts")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        record = files.read_json(os.path.join(folder, name)) if name.endswith(".json") else None
        if record is None:
            continue
        with _record(record["target"], folder) as (path, known):
            if known is None or (run is not None and run not in known["runs"]):
                continue
            other_runs = [user for user in known["runs"] if run is not None and user != run]
            if other_runs:
                files.write_json(path, {**known, "runs": other_runs})
            elif _unmount_target(known["target"]):
                os.unlink(path)
                unmounted.append(known["target"])
            else:
                remaining.append(f"{known['target']} ({known['source']})")
    return unmounted, remaining


def _unmount_target(target: str) -> bool:
    """Unmount a target, lazily if a normal unmount fails or hangs. Return True if the target is no longer mounted."""
    if not is_mounted(target):
        return True
    answer = run(["umount", target], _UNMOUNT_S)
    if answer.code or answer.timed_out:
        run(["umount", "--force", "--lazy", target], _UNMOUNT_S)
    return not is_mounted(target)


def is_mounted(target: str) -> bool:
    """Return True if the target is a mount point.

    The kernel's mount table is read first, because access to a mount may hang.
    """
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
            if any(_decoded_path(line.split()[4]) == target for line in table):
                return True
    except OSError:
        pass
    return run(["mountpoint", "-q", target], _CHECK_S).code == 0


def _target(mount: dict[str, Any], root: str) -> str:
    """Return the mount target with symlinks resolved, so that no symlink redirects it to a system directory."""
    target = _text(mount, "target")
    if not os.path.isabs(target) or os.path.normpath(target) != target:
        raise AgentError(f"mount: {target!r} is not a normalized absolute path", code="outside")
    path = os.path.join(os.path.realpath(os.path.dirname(target)), os.path.basename(target))
    resolved = os.path.realpath(path) if os.path.islink(path) and not is_mounted(path) else path
    inside = resolved[len(os.path.realpath(root)) :] if root else resolved
    parts = inside.strip("/").split("/")
    home = os.path.realpath(os.path.expanduser("~"))
    if parts[0] in ("", *_SYSTEM) or resolved == home or (parts[0] == "home" and len(parts) < 3):  # noqa: PLR2004
        raise AgentError(f"mount: {target} is a system or home directory on the node", code="outside")
    return resolved


def _make_directory(target: str, what: str) -> None:
    if not os.path.isdir(target):
        answer = run(["mkdir", "-p", target], _CHECK_S)
        if answer.code or answer.timed_out:
            raise AgentError(f"{what}: cannot create {target}: {answer.text}", code="io")


@contextmanager
def _record(target: str, folder: str = "") -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Lock a mount point's record during the block, so that concurrent runs take turns.

    Yield the record's path and the record, which is None if it has not been written yet.
    """
    folder = folder or agent_folder("mounts")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, hashlib.sha256(target.encode()).hexdigest()[:16] + ".json")
    with files.locked(path[: -len("json")] + "lock"):
        yield path, files.read_json(path)


def _text(spec: dict[str, Any], key: str) -> str:
    value = spec.get(key)
    if not isinstance(value, str) or not value:
        raise AgentError(f"mount: {key} is missing")
    return value


def _decoded_path(text: str) -> str:
    """Decode a path from a mount table, which escapes space, tab, newline and backslash as octal numbers."""
    return text.encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "replace") if "\\" in text else text
