"""`keep` and `kept`: upload a run's checkpoint directory to S3 during the run and at its end.

`keep` starts a background process that scans the directory every few seconds. The process uploads each file that is
unchanged between two scans, unless the file name marks it as unfinished. After the run has finished, the process scans
once more, uploads every remaining file and exits. `kept` waits for a scan in progress and then uploads the remaining
files itself, so it works even if the background process was killed. `NAME.json` in the run directory records the
uploaded files and, for large files, the uploaded parts.

If the request sets `at_end`, the directory is scanned only once, after the run. `patterns` in the request are regular
expressions that select files, and `name` is `keep` or `outputs`, so that a run can have two uploads. Files that match
`below_node_0` are stored in `node-0`, because they have the name of another node's directory.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import Any, Callable, Dict, Iterator

from . import files
from .gang import status
from .heartbeat import advance
from .instance_metadata import read_spot_notice
from .s3_upload import CheckpointBucket, FileChangedError
from .untrusted_data import AgentError

_NEVER_STARTED_S = 900.0
_POLL_S = 0.5
_POLLS_PER_READ = 20
"""Polls per read of the recorded uploads, whose file can have megabytes."""
_NAMES = {"keep": "checkpoint", "outputs": "output"}
"""Names of the two uploads that a run can have, and the terms for their files in messages."""
_MOST_NAMED = 20
_UNFINISHED = (".tmp", ".part", ".partial", ".incomplete")
Emit = Callable[[Dict[str, Any]], None]


def start_upload(spec: dict[str, Any], emit: Emit) -> None:
    """Start uploading a directory. Idempotent."""
    folder, name = status.run_dir(spec), _name(spec)
    CheckpointBucket(spec).check()
    with files.locked(os.path.join(folder, f"{name}.start")) as lock:
        state = files.read_json(_path(folder, name))
        if state is None:
            files.write_json(_path(folder, name), {"spec": spec, "files": {}, "failed": {}})
            _fork_uploader(folder, name, lock)
    emit({"keeping": str(spec.get("source")), "started": state is None})


def finish_upload(spec: dict[str, Any], emit: Emit) -> None:
    """Upload the remaining files after the run has ended, and print totals."""
    folder, name = status.run_dir(spec), _name(spec)
    state = files.read_json(_path(folder, name))
    if state is None:
        emit({"files": 0, "bytes": 0})
        return
    with _locked_after_scan(folder, name):
        state = Uploader(folder, name).look(whole=True)
    if state["failed"]:
        first_path = sorted(state["failed"])[0]
        count = f"{len(state['failed'])} {_NAMES[name]} file{'' if len(state['failed']) == 1 else 's'}"
        raise AgentError(f"{count} could not be uploaded: {state['failed'][first_path]}", code="upload")
    sizes = [file["seen"][0] for file in state["files"].values() if file.get("done")]
    skipped = state.get("skipped") or []
    emit({"files": len(sizes), "bytes": sum(sizes), **({"skipped": skipped} if skipped else {})})


@contextmanager
def _locked_after_scan(folder: str, name: str) -> Iterator[None]:
    """Wait for a scan in progress, and hold the lock during the block. The scan's uploads count as progress."""
    lock = os.open(os.path.join(folder, f"{name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        uploaded = None
        for poll in itertools.count():
            if files.try_lock(lock):
                break
            if poll % _POLLS_PER_READ == 0:
                before, uploaded = uploaded, (files.read_json(_path(folder, name)) or {}).get("files")
                if uploaded != before:
                    advance()
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(lock)


class Uploader:
    """Uploader for one directory. Each scan uploads the files that are complete."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = _path(folder, name)
        self._state = files.read_json(self._path) or {"spec": {}, "files": {}, "failed": {}}
        self._spec = self._state["spec"]
        self._patterns = [re.compile(os.fsencode(pattern), re.DOTALL) for pattern in self._spec.get("patterns") or ()]
        self._moved = re.compile(str(self._spec.get("below_node_0") or r"(?!)"))
        self._bucket = CheckpointBucket(self._spec)
        self._before: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def look(self, *, whole: bool) -> dict[str, Any]:
        """Upload the complete files and return the saved state. If `whole` is True, treat every file as complete."""
        self._state = files.read_json(self._path) or self._state  # another process may have uploaded files
        now, skipped, unlisted = _listed(str(self._spec["source"]), self._patterns)
        self._note(skipped, unlisted)
        # Checkpoints are sent in the order of writing, because a later file may refer to earlier ones. Of the outputs,
        # the small ones come first, so that a huge file does not delay or prevent them.
        first = 0 if self._spec.get("at_end") else 1
        for relative, seen in sorted(now.items(), key=lambda file: file[1][first]):
            known = self._state["files"].get(relative) or {}
            ready = whole or (self._before.get(relative) == seen and not relative.endswith(_UNFINISHED))
            if ready and not (known.get("done") and known.get("seen") == seen):
                self._send(relative, seen, known if known.get("seen") == seen else {}, last=whole)
        self._before = now
        return self._state

    def _note(self, skipped: list[str], unlisted: dict[str, str]) -> None:
        """Record the skipped entries, and the unreadable directories as failed until they can be listed."""
        old_unlisted = {path: why for path, why in self._state["failed"].items() if path.endswith("/")}
        if old_unlisted == unlisted and self._state.get("skipped", []) == skipped:
            return
        rest = {path: why for path, why in self._state["failed"].items() if path not in old_unlisted}
        self._state["failed"], self._state["skipped"] = {**rest, **unlisted}, skipped
        files.write_json(self._path, self._state)

    def _send(self, relative: str, seen: list[int], known: dict[str, Any], *, last: bool) -> None:
        def save(progress: dict[str, Any]) -> None:
            with self._lock:
                self._state["files"][relative] = {"seen": seen, **progress}
                files.write_json(self._path, self._state)
            advance()

        self._state["failed"].pop(relative, None)
        stored = f"node-0/{relative}" if self._moved.match(relative) else relative
        try:
            self._bucket.send(os.path.join(str(self._spec["source"]), relative), stored, known, save)
        except FileNotFoundError:
            return
        except FileChangedError:
            if last:  # there is no later scan
                self._fail(relative, f"{relative} was modified during the upload")
            return
        except AgentError as error:
            self._fail(relative, error.message)
            return
        except OSError as error:
            self._fail(relative, f"{relative} cannot be read: {error.strerror}")
            return
        except UnicodeEncodeError:
            self._fail(relative, f"{relative!a}: the file name is not UTF-8, which S3 requires")
            return
        save({"done": True})

    def _fail(self, relative: str, why: str) -> None:
        self._state["failed"][relative] = why
        self._state["files"].pop(relative, None)
        files.write_json(self._path, self._state)


def _fork_uploader(folder: str, name: str, lock: int) -> None:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(lock)  # otherwise this process would hold the lock until it exits
            _watch(folder, name)
        os._exit(0)
    os.waitpid(child, 0)


def _watch(folder: str, name: str) -> None:
    """Run the background process. Never returns."""
    try:
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        log = os.open(os.path.join(folder, f"{name}.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for number, handle in ((0, null), (1, log), (2, log)):
            os.dup2(handle, number)
        _upload_until_end(folder, name)
    except BaseException:  # noqa: BLE001 - the process ends here, with its traceback in the log
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _upload_until_end(folder: str, name: str) -> None:
    uploader = Uploader(folder, name)
    pause = float(uploader._spec.get("every_s") or 5)
    while True:
        run_ended = _run_has_ended(folder, name)
        if run_ended or not uploader._spec.get("at_end"):
            with files.locked(os.path.join(folder, f"{name}.lock")):
                uploader.look(whole=run_ended)
        if run_ended:
            return
        # An interrupted spot node has two minutes left, so scan more often.
        time.sleep(min(pause, 1.0) if _interruption_announced() else pause)


def _run_has_ended(folder: str, name: str) -> bool:
    run = status.read_status_if_any(folder)
    if run is None:  # the run has not started yet
        return time.time() - os.stat(os.path.join(folder, f"{name}.start")).st_mtime > _NEVER_STARTED_S
    return run["state"] in status.FINAL


def _interruption_announced() -> bool:
    with suppress(OSError):
        return read_spot_notice() is not None
    return False


def _listed(source: str, patterns: list[re.Pattern[bytes]]) -> tuple[dict[str, list[int]], list[str], dict[str, str]]:
    """List the regular files below a directory. If there are patterns, list only the files that match one.

    Returns:
        Size and mtime of each file; up to 20 names of skipped entries (sockets, pipes, devices, and symlinks whose
        target is missing or outside the directory); and the unreadable directories with the reasons.
    """
    listed: dict[str, list[int]] = {}
    skipped: list[str] = []
    unlisted: dict[str, str] = {}
    root = os.path.realpath(source)

    def on_error(error: OSError) -> None:
        relative = os.path.relpath(str(error.filename), source)
        if _must_be_listed(relative, error, patterns):
            shown = source if relative == "." else f"{relative}/"
            unlisted[relative + "/"] = f"{shown} cannot be listed: {error.strerror}"

    for folder, folders, names in os.walk(source, onerror=on_error):
        for name in [*names, *(name for name in folders if os.path.islink(os.path.join(folder, name)))]:
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, source)
            if patterns and not _matches(relative, patterns):
                continue
            with suppress(OSError):
                info = os.lstat(path)
                if stat.S_ISREG(info.st_mode):
                    listed[relative] = [info.st_size, info.st_mtime_ns]
                elif not (stat.S_ISLNK(info.st_mode) and _inside(path, root)):
                    skipped.append(relative)
    return listed, sorted(skipped)[:_MOST_NAMED], unlisted


def _must_be_listed(relative: str, error: OSError, patterns: list[re.Pattern[bytes]]) -> bool:
    """Return True if a directory that cannot be listed may contain files to upload."""
    if relative == ".":
        return not isinstance(error, FileNotFoundError)  # the run may not have created its directory yet
    return not patterns or _matches(relative, patterns)


def _inside(link: str, root: str) -> bool:
    return os.path.exists(link) and (os.path.realpath(link) + os.sep).startswith(root.rstrip(os.sep) + os.sep)


def _matches(relative: str, patterns: list[re.Pattern[bytes]]) -> bool:
    """Return True if the path or one of its parent directories matches."""
    path = os.fsencode(relative)
    while path:
        if any(pattern.fullmatch(path) for pattern in patterns):
            return True
        path = os.path.dirname(path)
    return False


def _name(spec: dict[str, Any]) -> str:
    name = str(spec.get("name") or "keep")
    if name not in _NAMES:
        raise AgentError(f"keep: name must be one of {' '.join(_NAMES)}, not {name!r}")
    return name


def _path(folder: str, name: str) -> str:
    return os.path.join(folder, f"{name}.json")
