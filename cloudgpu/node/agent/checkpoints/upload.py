"""`keep` and `kept`: what a run writes to its checkpoint directory goes to S3 while it runs, and at its end.

`keep` leaves a process behind that looks every few seconds. A file that did not change from one look to the next is
complete and goes up. The process ends with the run, after a last look; `kept` waits for that, and does itself what is
left, also when the process was killed. What is there already is known from `keep.json`, parts of large files too.

`at_end` waits for the end of the run and looks once; `patterns` say which files; `name` tells one upload of a run from
another.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Callable

from .. import files
from ..errors import AgentError
from ..gang import status
from .aws_role import metadata
from .bucket import Bucket, FileChangedError

_NOTICE = "/latest/meta-data/spot/instance-action"
_NEVER_STARTED_S = 900.0
_NAMES = {"keep": "checkpoint", "outputs": "output"}
"""What the uploads of a run are called, and what their files are."""
_MOST_NAMED = 20
_UNFINISHED = (".tmp", ".part", ".partial", ".incomplete")
Emit = Callable[[dict[str, Any]], None]


def verb(spec: dict[str, Any], emit: Emit) -> None:
    """Begin to keep a directory; a second call changes nothing.

    Raises:
        AgentError: The request makes no sense, or the role may not write there.
    """
    folder, name = status.run_dir(spec), _name(spec)
    Bucket(spec).check()
    with files.locked(os.path.join(folder, f"{name}.start")) as lock:
        state = files.read_json(_path(folder, name))
        if state is None:
            files.write_json(_path(folder, name), {"spec": spec, "files": {}, "failed": {}})
            _fork_uploader(folder, name, lock)
    emit({"keeping": str(spec.get("source")), "started": state is None})


def kept(spec: dict[str, Any], emit: Emit) -> None:
    """Bring up what is left and say what is there; the run has ended.

    Raises:
        AgentError: Something could not be brought there.
    """
    folder, name = status.run_dir(spec), _name(spec)
    state = files.read_json(_path(folder, name))
    if state is None:
        emit({"files": 0, "bytes": 0})
        return
    with files.locked(os.path.join(folder, f"{name}.lock")):
        state = Uploader(folder, name).look(whole=True)
    if state["failed"]:
        first = sorted(state["failed"])[0]
        count = f"{len(state['failed'])} {_NAMES[name]} files"
        raise AgentError(f"{count} are not kept: {state['failed'][first]}", code="upload")
    sizes = [one["seen"][0] for one in state["files"].values() if one.get("done")]
    skipped = state.get("skipped") or []
    emit({"files": len(sizes), "bytes": sum(sizes), **({"skipped": skipped} if skipped else {})})


class Uploader:
    """Brings one directory up, again and again."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = _path(folder, name)
        self._state = files.read_json(self._path) or {"spec": {}, "files": {}, "failed": {}}
        self._spec = self._state["spec"]
        self._patterns = [re.compile(os.fsencode(one), re.DOTALL) for one in self._spec.get("patterns") or ()]
        self._bucket = Bucket(self._spec)
        self._before: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def look(self, *, whole: bool) -> dict[str, Any]:
        """Bring up what is complete; with `whole`, nobody writes any more and all is complete."""
        self._state = files.read_json(self._path) or self._state  # another process may have gone on
        now, skipped, unlisted = _listed(str(self._spec["source"]), self._patterns)
        self._note(skipped, unlisted)
        for relative, seen in sorted(now.items(), key=lambda one: one[1][1]):
            known = self._state["files"].get(relative) or {}
            ready = whole or (self._before.get(relative) == seen and not relative.endswith(_UNFINISHED))
            if ready and not (known.get("done") and known.get("seen") == seen):
                self._send(relative, seen, known if known.get("seen") == seen else {}, last=whole)
        self._before = now
        return self._state

    def _note(self, skipped: list[str], unlisted: dict[str, str]) -> None:
        """Keep what cannot go up: directories that cannot be listed are failures until they can."""
        old = {one: why for one, why in self._state["failed"].items() if one.endswith("/")}
        if old == unlisted and self._state.get("skipped", []) == skipped:
            return
        rest = {one: why for one, why in self._state["failed"].items() if one not in old}
        self._state["failed"], self._state["skipped"] = {**rest, **unlisted}, skipped
        files.write_json(self._path, self._state)

    def _send(self, relative: str, seen: list[int], known: dict[str, Any], *, last: bool) -> None:
        def keep(progress: dict[str, Any]) -> None:
            with self._lock:
                self._state["files"][relative] = {"seen": seen, **progress}
                files.write_json(self._path, self._state)

        self._state["failed"].pop(relative, None)
        try:
            self._bucket.send(os.path.join(str(self._spec["source"]), relative), relative, known, keep)
        except FileNotFoundError:
            return
        except FileChangedError:
            if last:  # there is no next look
                self._fail(relative, f"{relative} was written to while it was sent")
            return
        except AgentError as error:
            self._fail(relative, error.message)
            return
        except OSError as error:
            self._fail(relative, f"{relative} cannot be read: {error.strerror}")
            return
        except UnicodeEncodeError:
            self._fail(relative, f"{relative!a}: its name is not UTF-8, as those of S3 are")
            return
        keep({"done": True})

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
            os.close(lock)  # it would be held for as long as this process lives
            _watch(folder, name)
        os._exit(0)
    os.waitpid(child, 0)


def _watch(folder: str, name: str) -> None:
    """The whole life of the process that stays; never returns."""
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
        run_ended = _ended(folder, name)
        if run_ended or not uploader._spec.get("at_end"):
            with files.locked(os.path.join(folder, f"{name}.lock")):
                uploader.look(whole=run_ended)
        if run_ended:
            return
        # A node that is about to be taken away has two minutes: look as often as can be.
        time.sleep(min(pause, 1.0) if _interruption_announced() else pause)


def _ended(folder: str, name: str) -> bool:
    run = status.read_if_any(folder)
    if run is None:  # it is about to be started
        return time.time() - os.stat(os.path.join(folder, f"{name}.start")).st_mtime > _NEVER_STARTED_S
    return run["state"] in status.FINAL


def _interruption_announced() -> bool:
    with suppress(OSError):
        return metadata(_NOTICE) is not None
    return False


def _listed(source: str, patterns: list[re.Pattern[bytes]]) -> tuple[dict[str, list[int]], list[str], dict[str, str]]:
    """Regular files below a directory, those that match where there are patterns.

    Also the first names of what is skipped (links to somewhere else, sockets, named pipes, devices), and the
    directories that cannot be listed, with the reason. A link to what lies below the directory is not missed.
    """
    found: dict[str, list[int]] = {}
    skipped: list[str] = []
    unlisted: dict[str, str] = {}
    root = os.path.realpath(source)

    def cannot(error: OSError) -> None:
        relative = os.path.relpath(str(error.filename), source)
        if relative != "." and (not patterns or _matches(relative, patterns)):
            unlisted[relative + "/"] = f"{relative}/ cannot be listed: {error.strerror}"

    for folder, folders, names in os.walk(source, onerror=cannot):
        for name in [*names, *(one for one in folders if os.path.islink(os.path.join(folder, one)))]:
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, source)
            if patterns and not _matches(relative, patterns):
                continue
            with suppress(OSError):
                kept = os.lstat(path)
                if stat.S_ISREG(kept.st_mode):
                    found[relative] = [kept.st_size, kept.st_mtime_ns]
                elif not (stat.S_ISLNK(kept.st_mode) and _inside(path, root)):
                    skipped.append(relative)
    return found, sorted(skipped)[:_MOST_NAMED], unlisted


def _inside(link: str, root: str) -> bool:
    return os.path.exists(link) and (os.path.realpath(link) + os.sep).startswith(root.rstrip(os.sep) + os.sep)


def _matches(relative: str, patterns: list[re.Pattern[bytes]]) -> bool:
    """Whether it matches, or a directory that it lies in."""
    path = os.fsencode(relative)
    while path:
        if any(pattern.fullmatch(path) for pattern in patterns):
            return True
        path = os.path.dirname(path)
    return False


def _name(spec: dict[str, Any]) -> str:
    name = str(spec.get("name") or "keep")
    if name not in _NAMES:
        raise AgentError(f"keep: {name!r} is none of {' '.join(_NAMES)}")
    return name


def _path(folder: str, name: str) -> str:
    return os.path.join(folder, f"{name}.json")
