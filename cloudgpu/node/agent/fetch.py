"""`fetch`: download files from presigned addresses, in parallel, resuming, verified; an address is never shown."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import http.client
import os
import random
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Iterator

from .errors import AgentError

_THREADS = 8
_ATTEMPTS = 6
_BACK_OFF_S = 0.4
_LONGEST_WAIT_S = 20.0
_SILENCE_S = 60.0
_CHUNK = 1 << 20
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Wanted:
    """One file. The address holds a signature, so it is a secret."""

    url: str
    path: str
    size: int
    sha256: str | None

    def __repr__(self) -> str:
        return f"Wanted(path={self.path!r}, size={self.size})"


class Passing(Exception):  # noqa: N818 - it says what the failure is: one that passes
    """It may work the next time."""


def verb(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Fetch them all; print how many were fetched, how many bytes, and how many were right already.

    Raises:
        AgentError: The request is wrong, or a file could not be fetched; the first failure is named, the rest stops.
    """
    files = _read(spec)
    downloads = Downloads(int(spec.get("attempts") or _ATTEMPTS))
    with ThreadPoolExecutor(_THREADS) as pool:
        fetched = list(pool.map(downloads.fetch, files))
    if downloads.failure is not None:
        raise downloads.failure
    emit({"fetched": sum(fetched), "bytes": downloads.bytes, "reused": len(files) - sum(fetched)})


class Downloads:
    """What several threads do at once, and the first failure that ends them all."""

    def __init__(self, attempts: int) -> None:
        self.bytes = 0
        self.failure: AgentError | None = None
        self._most = attempts
        self._lock = threading.Lock()
        self._over = threading.Event()

    def fetch(self, wanted: Wanted) -> bool:
        """Fetch one file unless it is right already; returns whether it was fetched."""
        if self._over.is_set():
            return False
        try:
            return self._fetch(wanted)
        except AgentError as error:
            self._fail(error)
        except OSError as error:
            self._fail(_trouble(wanted, error))
        return False

    def _fail(self, error: AgentError) -> None:
        with self._lock:
            self.failure = self.failure or error
        self._over.set()

    def _fetch(self, wanted: Wanted) -> bool:
        if _right(wanted.path, wanted):
            return False
        os.makedirs(os.path.dirname(wanted.path), exist_ok=True)
        part = _open_part(wanted.path + ".part")
        try:
            if _right(wanted.path, wanted):
                return False  # somebody else fetched it while we waited for the lock
            self._attempts(part, wanted)
            os.replace(wanted.path + ".part", wanted.path)
        finally:
            os.close(part)
        return True

    def _attempts(self, part: int, wanted: Wanted) -> None:
        """Try until the part is whole.

        Raises:
            AgentError: It will not become so.
        """
        for attempt in range(1, self._most + 1):
            try:
                self._download(part, wanted)
            except Passing as trouble:
                if attempt == self._most:
                    raise AgentError(f"{wanted.path}: {trouble} ({attempt} attempts)", code="network") from None
                wait = min(_LONGEST_WAIT_S, _BACK_OFF_S * 2**attempt) * random.uniform(0.5, 1)  # noqa: S311 - jitter
                self._over.wait(wait)
            else:
                return
            if self._over.is_set():
                return

    def _download(self, part: int, wanted: Wanted) -> None:
        """Go on where the part ends, then verify.

        Raises:
            Passing: Try again.
            AgentError: Trying again is useless.
        """
        digest = hashlib.sha256()
        resumed = have = _digest_part(part, wanted.size, digest)
        if have < wanted.size or not wanted.size:
            with _ask(wanted, have) as answer:
                if have and answer.status != http.client.PARTIAL_CONTENT:
                    have, digest = 0, hashlib.sha256()  # the server starts from the beginning
                os.ftruncate(part, have)
                os.lseek(part, have, os.SEEK_SET)
                for data in _body(answer):
                    _write(part, data)
                    digest.update(data)
                    have += len(data)
                    self._count(len(data))
        _verify(part, wanted, have, digest.hexdigest(), resumed=bool(resumed))

    def _count(self, size: int) -> None:
        with self._lock:
            self.bytes += size


def _ask(wanted: Wanted, have: int) -> http.client.HTTPResponse:
    headers = {"Range": f"bytes={have}-"} if have else {}
    request = urllib.request.Request(wanted.url, headers=headers)  # noqa: S310 - http and https only, checked
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_SILENCE_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        with error:
            said = f"the server answered {error.code} {error.reason}"
        if error.code in _PASSING:
            raise Passing(said) from None
        hint = (
            "the presigned address may have expired: run the command again"
            if error.code == http.client.FORBIDDEN
            else ""
        )
        raise AgentError(f"{wanted.path}: {said}", hint=hint, code="refused") from None
    except (OSError, http.client.HTTPException) as error:
        raise Passing(f"cannot reach the server: {_reason(error)}") from None
    return answer


def _body(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            data = answer.read(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise Passing(f"the connection broke: {_reason(error)}") from None
        if not data:
            return
        yield data


def _verify(part: int, wanted: Wanted, have: int, digest: str, *, resumed: bool) -> None:
    """Keep a part that is short; empty one that is wrong, or no later attempt could succeed."""
    if have < wanted.size:
        raise Passing(f"only {have} of {wanted.size} bytes came")
    wrong = ""
    if have > wanted.size:
        wrong = f"{have} bytes came, {wanted.size} were expected"
    elif wanted.sha256 is not None and digest != wanted.sha256:
        wrong = f"wrong checksum: sha256 {digest}, expected {wanted.sha256}"
    if wrong:
        os.ftruncate(part, 0)
        if resumed:
            raise Passing(wrong)  # the beginning may be of an older file: once more from there
        hint = "the file at the source has changed or is damaged"
        raise AgentError(f"{wanted.path}: {wrong}", hint=hint, code="checksum")


def _write(part: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(part, view) :]


def _open_part(path: str) -> int:
    """Open the partial file and lock it; two fetches of one file take turns."""
    while True:
        part = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        fcntl.flock(part, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(part), os.stat(path)):
                return part
        except FileNotFoundError:
            pass  # renamed to its final name while we waited
        os.close(part)


def _digest_part(part: int, size: int, digest: Any) -> int:  # noqa: ANN401 - hashlib names no type
    """Take what is there already into the digest; returns how much it is. More than there can be is thrown away."""
    if os.fstat(part).st_size > size:
        os.ftruncate(part, 0)
    os.lseek(part, 0, os.SEEK_SET)
    have = 0
    while True:
        data = os.read(part, _CHUNK)
        if not data:
            return have
        digest.update(data)
        have += len(data)


def _right(path: str, wanted: Wanted) -> bool:
    """Whether the file is there and is what it should be."""
    try:
        if os.stat(path).st_size != wanted.size:
            return False
        if wanted.sha256 is None:
            return True
        digest = hashlib.sha256()
        with open(path, "rb") as stream:
            for data in iter(lambda: stream.read(_CHUNK), b""):
                digest.update(data)
    except FileNotFoundError:
        return False
    return digest.hexdigest() == wanted.sha256


def _trouble(wanted: Wanted, error: OSError) -> AgentError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "give the nodes a larger disk (`resources.disk`), or mount the data"
        return AgentError(f"{wanted.path}: the disk is full", hint=hint, code="disk-full")
    return AgentError(f"{wanted.path}: {error.strerror or type(error).__name__}", code="io")


def _reason(error: Exception) -> str:
    """What went wrong, without the address that some messages repeat."""
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return "timed out" if isinstance(inner, TimeoutError) else type(inner).__name__


def _read(spec: dict[str, Any]) -> list[Wanted]:
    given, roots = spec.get("files"), spec.get("roots") or []
    if not isinstance(given, list):
        raise AgentError("fetch: files must be a list")
    files = [_wanted(one) for one in given]
    if len({one.path for one in files}) != len(files):
        raise AgentError("fetch: two files have the same path")
    for one in files:
        if roots and not any(_below(one.path, root) for root in roots):
            raise AgentError(f"fetch: {one.path} is outside the data directories", code="outside")
    return files


def _wanted(given: Any) -> Wanted:  # noqa: ANN401 - unchecked input
    if not isinstance(given, dict):
        raise AgentError("fetch: every file must be an object")
    url, path, size, sha256 = given.get("url"), given.get("path"), given.get("size"), given.get("sha256")
    if not isinstance(path, str) or not os.path.isabs(path) or os.path.normpath(path) != path:
        raise AgentError(f"fetch: {path!r} is not a plain absolute path", code="outside")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise AgentError(f"fetch: the address of {path} is not http or https")
    if not isinstance(size, int) or size < 0 or not (sha256 is None or isinstance(sha256, str)):
        raise AgentError(f"fetch: size or sha256 of {path} make no sense")
    return Wanted(url, path, size, None if sha256 is None else sha256.lower())


def _below(path: str, root: str) -> bool:
    """Whether the path stays below the directory, links on the way included."""
    real = os.path.realpath(root)
    return os.path.realpath(os.path.dirname(path) + "/x").startswith(real.rstrip("/") + "/")
