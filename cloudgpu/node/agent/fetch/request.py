"""The request of `fetch`: files with URLs, sizes and checksums. Validated before anything is done."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ..errors import AgentError
from ..untrusted_data import LARGEST


@dataclass(frozen=True)
class RequestedFile:
    """One file. Its URL may contain a signature and is secret.

    Attributes:
        etag: The source's identifier of the content; empty if it has none.
        mtime_ns: Modification time to set, which distinguishes versions of the same size; None for any.
        mode: Permissions; None for the default.
    """

    url: str
    path: str
    size: int
    sha256: str | None
    etag: str = ""
    mtime_ns: int | None = None
    mode: int | None = None

    def __repr__(self) -> str:
        return f"Wanted(path={self.path!r}, size={self.size})"

    @property
    def mark(self) -> str:
        """Distinguishes this content from other content of the same size; empty if unknown."""
        if self.mtime_ns is not None:
            return f"time {self.mtime_ns}"
        return self.sha256 or (f"etag {self.etag}" if self.etag else "")


def read(spec: dict[str, Any]) -> list[RequestedFile]:
    """Parse the files of a request.

    Raises:
        AgentError: The request is invalid, or a path leads out of the data directories.
    """
    given, roots = spec.get("files"), _roots(spec.get("roots") or [])
    if not isinstance(given, list):
        raise AgentError("fetch: files must be a list")
    files = [_wanted(row) for row in given]
    _check_paths(files)
    for file in files:
        if roots and not any(_below(file.path, root) for root in roots):
            raise AgentError(f"fetch: {file.path} is outside the data directories", code="outside")
    return files


def _roots(given: Any) -> list[str]:  # noqa: ANN401 - unchecked input
    if not isinstance(given, list):
        raise AgentError("fetch: roots must be a list")
    if not all(isinstance(root, str) and "\0" not in root for root in given):
        raise AgentError("fetch: a root is not a path")
    return given


def _check_paths(files: list[RequestedFile]) -> None:
    """Refuse files that would overwrite each other, or the parts of each other.

    Raises:
        AgentError: Two of them would.
    """
    paths = {file.path for file in files}
    if len(paths) != len(files):
        raise AgentError("fetch: two files have the same path")
    for file in files:
        for beside in (f"{file.path}.part", f"{file.path}.part.map"):
            if beside in paths:
                raise AgentError(
                    f"fetch: {file.path} arrives as {beside}, which is another file's name", code="outside"
                )


def _wanted(given: Any) -> RequestedFile:  # noqa: ANN401 - unchecked input
    if not isinstance(given, dict):
        raise AgentError("fetch: every file must be an object")
    url, path, size, sha256 = given.get("url"), given.get("path"), given.get("size"), given.get("sha256")
    if not isinstance(path, str) or not os.path.isabs(path) or os.path.normpath(path) != path or "\0" in path:
        raise AgentError(f"fetch: {path!r} is not a plain absolute path", code="outside")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise AgentError(f"fetch: the address of {path} is not http or https")
    if not isinstance(size, int) or not _is_whole(size) or size < 0 or not (sha256 is None or isinstance(sha256, str)):
        raise AgentError(f"fetch: size or sha256 of {path} is invalid")
    mtime_ns, mode = given.get("mtime_ns"), given.get("mode")
    if not all(value is None or _is_whole(value) for value in (mtime_ns, mode)):
        raise AgentError(f"fetch: time or mode of {path} is invalid")
    digest = None if sha256 is None else sha256.lower()
    return RequestedFile(url, path, size, digest, str(given.get("etag") or ""), mtime_ns, mode)


def _is_whole(value: Any) -> bool:  # noqa: ANN401 - unchecked input
    """Return True if the value is valid as the size or time of a file."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def _below(path: str, root: str) -> bool:
    """Return True if the path stays below the directory after resolving links."""
    real = os.path.realpath(root)
    return os.path.realpath(os.path.dirname(path) + "/x").startswith(real.rstrip("/") + "/")
