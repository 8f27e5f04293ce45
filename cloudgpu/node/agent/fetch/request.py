"""The `fetch` request: files with URLs, sizes and checksums, and the peer that serves them. Validated before use."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Any

from ..untrusted_data import LARGEST, AgentError


@dataclass(frozen=True)
class RequestedFile:
    """A file to download. Its URL is secret, because it may contain a signature.

    Attributes:
        etag: The source's identifier of the content; empty if the source has none.
        mtime_ns: Modification time to set, which also distinguishes versions of the same size; None to set none.
        mode: Permissions to set; None for the default.
    """

    url: str
    path: str
    size: int
    sha256: str | None
    etag: str = ""
    mtime_ns: int | None = None
    mode: int | None = None

    def __repr__(self) -> str:
        return f"RequestedFile(path={self.path!r}, size={self.size})"

    @property
    def mark(self) -> str:
        """Identifier that distinguishes this content from other content of the same size; empty if unknown."""
        if self.mtime_ns is not None:
            return f"time {self.mtime_ns}"
        return self.sha256 or (f"etag {self.etag}" if self.etag else "")


def parse_requested_files(spec: dict[str, Any]) -> list[RequestedFile]:
    """Parse the files of a request."""
    entries, roots = spec.get("files"), _roots(spec.get("roots") or [])
    if not isinstance(entries, list):
        raise AgentError("fetch: files must be a list")
    files = [_requested_file(row) for row in entries]
    _check_paths(files)
    for file in files:
        if roots and not any(_below(file.path, root) for root in roots):
            raise AgentError(f"fetch: {file.path} is outside the data directories", code="outside")
    return files


def _roots(roots: Any) -> list[str]:  # noqa: ANN401 - unchecked input
    if not isinstance(roots, list):
        raise AgentError("fetch: roots must be a list")
    if not all(isinstance(root, str) and "\0" not in root for root in roots):
        raise AgentError("fetch: every root must be a path")
    return roots


def _check_paths(files: list[RequestedFile]) -> None:
    """Reject files that would overwrite each other or each other's partial files."""
    paths = {file.path for file in files}
    if len(paths) != len(files):
        raise AgentError("fetch: two files have the same path")
    for file in files:
        for temporary in (f"{file.path}.part", f"{file.path}.part.map"):
            if temporary in paths:
                raise AgentError(
                    f"fetch: the partial file of {file.path} would overwrite {temporary}, which is requested too",
                    code="outside",
                )


def _requested_file(entry: Any) -> RequestedFile:  # noqa: ANN401 - unchecked input
    if not isinstance(entry, dict):
        raise AgentError("fetch: every file must be an object")
    url, path, size, sha256 = entry.get("url"), entry.get("path"), entry.get("size"), entry.get("sha256")
    if not isinstance(path, str) or not os.path.isabs(path) or os.path.normpath(path) != path or "\0" in path:
        raise AgentError(f"fetch: {path!r} is not a normalized absolute path", code="outside")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise AgentError(f"fetch: the URL of {path} is not http or https")
    if not isinstance(size, int) or not _is_whole(size) or size < 0 or not (sha256 is None or isinstance(sha256, str)):
        raise AgentError(f"fetch: size or sha256 of {path} is invalid")
    mtime_ns, mode = entry.get("mtime_ns"), entry.get("mode")
    if not all(value is None or _is_whole(value) for value in (mtime_ns, mode)):
        raise AgentError(f"fetch: time or mode of {path} is invalid")
    digest = None if sha256 is None else sha256.lower()
    return RequestedFile(url, path, size, digest, str(entry.get("etag") or ""), mtime_ns, mode)


def _is_whole(value: Any) -> bool:  # noqa: ANN401 - unchecked input
    """Return True if the value is a valid file size, time or mode."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def _below(path: str, root: str) -> bool:
    """Return True if the path stays below the directory after symlinks are resolved."""
    real = os.path.realpath(root)
    return os.path.realpath(os.path.dirname(path) + "/x").startswith(real.rstrip("/") + "/")


@dataclass(frozen=True)
class Peer:
    """Another node, which serves the data. The token is a secret.

    Attributes:
        url: URL of the server, such as `https://10.0.0.5:41234`.
    """

    url: str
    token: str
    context: ssl.SSLContext

    def __repr__(self) -> str:
        return f"Peer({self.url})"

    @property
    def headers(self) -> dict[str, str]:
        """The authorization header."""
        return {"Authorization": f"Bearer {self.token}"}


def parse_peer(spec: dict[str, Any]) -> Peer | None:
    """Return the peer in a request, or None if there is none."""
    peer = spec.get("hand")
    if not peer:
        return None
    try:
        # The certificate does not contain the node's address, so trust only this certificate and check no host name.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=str(peer["cert"]))
        return Peer(str(peer["url"]), str(peer["token"]), context)
    except (KeyError, TypeError, ValueError, ssl.SSLError) as error:
        raise AgentError("hand: the other node's URL, token or certificate is invalid") from error
