"""`setup`: run a recipe's setup script once on this node, and give the files that it created to every run."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import Any, Callable, Dict

from .. import files, subprocess_tool
from ..errors import AgentError
from ..masking import Mask
from . import installer

Progress = Callable[[str], None]
Seen = Dict[str, Any]

_MARKER = ".cloudgpu-complete.json"
"""File that is written last. A directory without this file was left by an interrupted setup."""
_SCRIPT = "setup.sh"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHOWN = 3
_HINT = "correct `setup` in the recipe and run the command again"


@dataclass(frozen=True)
class SetupRequest:
    """A setup script and the run for which it prepares this node. Contains secrets and is never written to disk.

    Attributes:
        digest: Digest of everything that the result depends on, except the interpreter.
        interpreter: Python of the run; its directory comes first on the PATH.
        workdir: The run's copy of the work directory.
        root: Directory that keeps the finished setups.
    """

    script: str
    digest: str
    interpreter: str
    workdir: str
    root: str
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"SetupRequest(digest={self.digest!r})"


def verb(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Print progress lines, then `{"ran": bool}`.

    Raises:
        AgentError: The request is invalid, or the script failed.
    """
    emit({"ran": provide_setup(_read(spec), lambda text: emit({"progress": text}))})


def provide_setup(request: SetupRequest, progress: Progress) -> bool:
    """Run the script unless it has succeeded before, and copy the files that it created to the run.

    Return True if this call ran the script.

    Raises:
        AgentError: The script failed, or a file cannot be written.
    """
    key = hashlib.sha256(f"{request.digest} {request.interpreter}".encode()).hexdigest()[:20]
    folder = os.path.join(request.root, key)
    try:
        os.makedirs(request.root, mode=0o700, exist_ok=True)
        lock = os.open(folder + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AgentError(f"cannot write {request.root}: {error.strerror}") from error
    try:
        if not files.try_lock(lock):
            progress("waiting for another run of the same setup")
            files.wait_lock(lock)
        created = _read_created(folder)
        ran = created is None
        if created is None:
            created = _run_once(request, folder, progress, lock)
        _copy_created(created, os.path.join(folder, "work"), request.workdir)
    except OSError as error:
        raise AgentError(f"setup: {error.strerror}: {error.filename}", hint="check the free disk space") from error
    finally:
        os.close(lock)
    return ran


def _run_once(request: SetupRequest, folder: str, progress: Progress, lock: int) -> list[str]:
    """Run the script in a copy of the work directory, which remains because installed packages may refer to it."""
    if os.path.lexists(folder):
        shutil.rmtree(folder)
    work = os.path.join(folder, "work")
    os.makedirs(work, mode=0o700)
    _copy(os.path.join(request.workdir, "."), work)
    script = os.path.join(folder, _SCRIPT)
    with open(script, "w", encoding="utf-8") as stream:
        stream.write(request.script)
    before = _list(work)
    progress("running setup")
    mask = Mask(request.secrets.values())
    argv = ["bash", "-eo", "pipefail", script]
    options = subprocess_tool.ToolOptions(work, mask, _HINT)
    subprocess_tool.run(argv, "setup", progress, holds=lock, env=_environment(request), options=options)
    after = _list(work)
    changed = sorted(path for path in before if path in after and after[path] != before[path])
    if changed:
        names = ", ".join(changed[:_SHOWN]) + (" ..." if len(changed) > _SHOWN else "")
        progress(f"setup changed files of the work directory; runs do not get these changes: {names}")
    created = _topmost(sorted(path for path in after if path not in before))
    files.write_json(os.path.join(folder, _MARKER), {"created": created})
    return created


def _read_created(folder: str) -> list[str] | None:
    """Return the files that a finished setup created, relative to its work directory; None if it has not finished.

    Raises:
        DamagedError: The marker is not a JSON object.
    """
    marker = files.read_json(os.path.join(folder, _MARKER)) or {}
    created = marker.get("created")
    if not isinstance(created, list) or not all(map(_is_below, created)):
        return None
    return created


def _is_below(path: object) -> bool:
    """Return True if a value is the path of a file below the work directory."""
    return isinstance(path, str) and "\0" not in path and not os.path.isabs(path) and ".." not in path.split(os.sep)


def _environment(request: SetupRequest) -> dict[str, str]:
    inherited = {name: value for name, value in installer.clean_environment().items() if not name.startswith("SSH_")}
    environment = {**inherited, **request.env, **request.secrets}
    if os.path.isabs(request.interpreter):
        folder = os.path.dirname(request.interpreter)
        environment["PATH"] = f"{folder}:{environment.get('PATH') or os.defpath}"
        if os.path.exists(os.path.join(os.path.dirname(folder), "pyvenv.cfg")):
            environment["VIRTUAL_ENV"] = os.path.dirname(folder)  # so that uv installs into this environment
    return environment


def _list(top: str) -> Seen:
    """Return every file and directory below a directory, with a value that changes when a file is written."""
    seen: Seen = {}
    for folder, directories, names in os.walk(top):
        for name in (*directories, *names):
            path = os.path.join(folder, name)
            info = os.lstat(path)
            is_folder = name in directories and not os.path.islink(path)
            seen[os.path.relpath(path, top)] = None if is_folder else (info.st_size, info.st_mtime_ns)
    return seen


def _topmost(paths: list[str]) -> list[str]:
    """Return the paths that are not below another one. The paths are sorted."""
    chosen: list[str] = []
    for path in paths:
        if not (chosen and path.startswith(chosen[-1] + os.sep)):
            chosen.append(path)
    return chosen


def _copy_created(created: list[str], source: str, workdir: str) -> None:
    """Copy the files that the setup created. A file of the same name in the work directory stays as it was sent."""
    for path in created:
        target = os.path.join(workdir, path)
        if not os.path.lexists(target) and os.path.lexists(os.path.join(source, path)):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _copy(os.path.join(source, path), target)


def _copy(source: str, target: str) -> None:
    """Copy a file or directory as staging does, sharing blocks where the file system can."""
    done = subprocess.run(["cp", "-a", "--reflink=auto", "--", source, target], capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise AgentError(f"setup: {said[-1] if said else 'cp failed'}", hint="check the free disk space")


def _read(spec: dict[str, Any]) -> SetupRequest:
    texts = {name: spec.get(name) for name in ("script", "digest", "interpreter", "workdir", "root")}
    for name, value in texts.items():
        if not isinstance(value, str) or "\0" in value:
            raise AgentError(f"setup: {name} must be text")
    if not _DIGEST.fullmatch(str(texts["digest"])):
        raise AgentError("setup: digest must be a SHA-256 digest in hexadecimal")
    for name in ("workdir", "root"):
        if not os.path.isabs(str(texts[name])):
            raise AgentError(f"setup: {name} must be an absolute path")
    mappings = {name: spec.get(name) or {} for name in ("env", "secrets")}
    for name, pairs in mappings.items():
        if not isinstance(pairs, dict) or not all(_is_variable(key, value) for key, value in pairs.items()):
            raise AgentError(f"setup: {name} must map names to text")
    return SetupRequest(**texts, **mappings)  # type: ignore[arg-type]  # checked above


def _is_variable(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and bool(name)
        and not set("=\0") & set(name)
        and (isinstance(value, str) and "\0" not in value)
    )
