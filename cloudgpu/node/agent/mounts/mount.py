"""`mount` and `unmount`: mount datasets for the runs that use them, with time limits, never over system paths.

A mount belongs to the runs that use it. `~/.cloudgpu/mounts/` has a record of each, written before the mount is
attempted, so that interrupted ones are unmounted later. The last run unmounts.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from .. import files, superuser
from ..agent_home import own_folder
from ..errors import AgentError

_SYSTEM = frozenset(
    ["bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var"]
)
_UNMOUNT_S = 20.0
_LOOK_S = 20.0
Emit = Callable[[dict[str, Any]], None]


def verb(spec: dict[str, Any], emit: Emit) -> None:
    """Mount every dataset of a run; what one of them fails with ends all of this run's.

    Raises:
        AgentError: It cannot be mounted; dataset, source and the seconds that it was given are named.
    """
    run = _text(spec, "run")
    done: list[str] = []
    reused: list[str] = []
    with superuser.orphans_adopted():
        for wanted in spec.get("mounts") or []:
            try:
                (done if _mount(wanted, run, emit) else reused).append(_text(wanted, "name"))
            except AgentError:
                _leave(run)
                raise
    emit({"mounted": done, "reused": reused})


def unmount(spec: dict[str, Any], emit: Emit) -> None:
    """Take down what only this run uses; with `all`, what any run uses.

    Raises:
        AgentError: Something is still mounted.
    """
    gone, left = _leave(None if spec.get("all") else _text(spec, "run"))
    emit({"unmounted": gone})
    if left:
        raise AgentError("still mounted: " + "; ".join(left), hint="umount --lazy as the superuser", code="mounted")


def _mount(wanted: dict[str, Any], run: str, emit: Emit) -> bool:
    """Mount a source. Return False if another run has already mounted it."""
    target = _target(wanted, str(wanted.get("root") or ""))
    with _record(target) as (path, record):
        requested = {"target": target, "source": _text(wanted, "source"), "argv": list(wanted["argv"])}
        if record is not None and is_mounted(target):
            if {key: record.get(key) for key in requested} != requested:
                message = f"dataset {wanted['name']}: {target} shows {record['source']} to run {_others(record)}"
                raise AgentError(message, hint="wait until it has ended, or choose another place", code="taken")
            files.write_json(path, {**record, "runs": sorted({*record["runs"], run})})
            return False
        if is_mounted(target):
            message = f"dataset {wanted['name']}: something is mounted at {target} already"
            raise AgentError(message, hint="choose another place, or unmount it", code="taken")
        files.write_json(path, {**requested, "runs": [run]})
        _carry_out(wanted, target, emit)
    return True


def _carry_out(wanted: dict[str, Any], target: str, emit: Emit) -> None:
    what = f"dataset {wanted['name']}: {wanted['source']}"
    seconds = float(wanted.get("seconds") or 60)
    argv = [str(word) for word in wanted["argv"]]
    _make_directory(target, what)
    _install(wanted, what, emit)
    before = superuser.descendants()
    failure = _failure(what, str(wanted.get("program") or argv[0]), argv, target, seconds)
    if failure is not None:
        superuser.end(before)
        _take_down(target)
        raise failure


def _failure(what: str, program: str, argv: list[str], target: str, seconds: float) -> AgentError | None:
    """Mount it and look; what it failed with."""
    answer = superuser.run(argv, seconds)
    if answer.timed_out:
        hint = "check that the nodes can reach it (address, security groups, role), or raise data.within"
        return AgentError(f"{what} was not mounted at {target} within {seconds:g} s", hint=hint, code="mount-hangs")
    if answer.code:
        said = f": {answer.text}" if answer.text else ""
        message = f"{what} could not be mounted at {target} ({program} ended with {answer.code}{said})"
        return AgentError(message, hint="check that the nodes may read it and are in the same network", code="mount")
    # Some file systems are mounted at once and answer never.
    limit = min(seconds, _LOOK_S)
    look = superuser.run(["ls", "-d", f"{target}/."], limit)
    if look.timed_out:
        message = f"{what} was mounted at {target} but did not respond within {limit:g} s"
        return AgentError(message, hint="check that its server is running", code="mount-hangs")
    if look.code or not is_mounted(target):
        shown = f": {look.text}" if look.text else ""
        return AgentError(f"{what} was mounted at {target} and cannot be read{shown}", code="mount")
    return None


def _install(wanted: dict[str, Any], what: str, emit: Emit) -> None:
    """Install the mount client, if the caller allows it, as on nodes that are deleted with their cluster."""
    program, package = str(wanted.get("program") or ""), str(wanted.get("package") or "")
    if not program or superuser.has(program):
        return
    install = str(wanted.get("install") or "")
    if not install:
        message = f"{what}: {program} is not installed on this node"
        raise AgentError(message, hint=f"install {package}", code="no-client")
    emit({"progress": f"installing {package}"})
    answer = superuser.run(["/bin/sh", "-c", install], 600.0)
    if answer.code or answer.timed_out:
        raise AgentError(f"{what}: {package} could not be installed: {answer.text}", code="no-client")


def leave_all(folder: str) -> list[str]:
    """Take down what any run has mounted by the records in a folder; what is still mounted."""
    return _leave(None, folder)[1]


def _leave(run: str | None, folder: str = "") -> tuple[list[str], list[str]]:
    """Release the mounts of a run, or of all if `run` is None. Return unmounted targets and what is still mounted."""
    gone, left = [], []
    folder = folder or own_folder("mounts")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        record = files.read_json(os.path.join(folder, name)) if name.endswith(".json") else None
        if record is None:
            continue
        with _record(record["target"], folder) as (path, known):
            if known is None or (run is not None and run not in known["runs"]):
                continue
            rest = [other for other in known["runs"] if run is not None and other != run]
            if rest:
                files.write_json(path, {**known, "runs": rest})
            elif _take_down(known["target"]):
                os.unlink(path)
                gone.append(known["target"])
            else:
                left.append(f"{known['target']} ({known['source']})")
    return gone, left


def _take_down(target: str) -> bool:
    """Unmount a target; if it hangs, detach it lazily."""
    if not is_mounted(target):
        return True
    answer = superuser.run(["umount", target], _UNMOUNT_S)
    if answer.code or answer.timed_out:
        superuser.run(["umount", "--force", "--lazy", target], _UNMOUNT_S)
    return not is_mounted(target)


def is_mounted(target: str) -> bool:
    """Return True if the target is in the kernel's mount table.

    The mount itself is not accessed, because it may hang.
    """
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
            if any(_unescaped(line.split()[4]) == target for line in table):
                return True
    except OSError:
        pass
    return superuser.run(["mountpoint", "-q", target], _LOOK_S).code == 0


def _target(wanted: dict[str, Any], root: str) -> str:
    """Return the mount target with links resolved, so that no link leads it over a system directory.

    Raises:
        AgentError: The target is not a plain path, or is a system directory.
    """
    target = _text(wanted, "target")
    if not os.path.isabs(target) or os.path.normpath(target) != target:
        raise AgentError(f"mount: {target!r} is not a plain absolute path", code="outside")
    placed = os.path.join(os.path.realpath(os.path.dirname(target)), os.path.basename(target))
    real = os.path.realpath(placed) if os.path.islink(placed) and not is_mounted(placed) else placed
    inside = real[len(os.path.realpath(root)) :] if root else real
    parts = inside.strip("/").split("/")
    home = os.path.realpath(os.path.expanduser("~"))
    if parts[0] in ("", *_SYSTEM) or real == home or (parts[0] == "home" and len(parts) < 3):  # noqa: PLR2004
        raise AgentError(f"mount: {target} is a system directory of the node", code="outside")
    return real


def _make_directory(target: str, what: str) -> None:
    if not os.path.isdir(target):
        answer = superuser.run(["mkdir", "-p", target], _LOOK_S)
        if answer.code or answer.timed_out:
            raise AgentError(f"{what}: cannot make {target}: {answer.text}", code="io")


@contextmanager
def _record(target: str, folder: str = "") -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield the record of a mount point under a lock, so that concurrent runs take turns."""
    folder = folder or own_folder("mounts")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, hashlib.sha256(target.encode()).hexdigest()[:16] + ".json")
    with files.locked(path[: -len("json")] + "lock"):
        yield path, files.read_json(path)


def _others(record: dict[str, Any]) -> str:
    return ", ".join(record.get("runs") or []) or "nobody"


def _text(spec: dict[str, Any], key: str) -> str:
    value = spec.get(key)
    if not isinstance(value, str) or not value:
        raise AgentError(f"mount: {key} is missing")
    return value


def _unescaped(text: str) -> str:
    """Mount tables write space, tab, newline and backslash as octal."""
    return text.encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "replace") if "\\" in text else text
