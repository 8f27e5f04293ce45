"""Pull an image through the engine's API, or copy it from another node as an archive.

A pull times out only if it makes no progress. One engine saves an archive, and the others load it.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import shutil
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from typing import IO, Any, Callable, Dict, Iterator
from urllib.parse import urlencode

from ..fetch.http import HttpConnections, Peer, RequestedFile, TransientError
from ..files import agent_folder
from ..untrusted_data import MALFORMED, AgentError, require_number, require_object
from .docker_api import DockerApi, DockerApiError, check_engine, find_docker_endpoint

_REPORT_S = 5.0
_WAITS_S = (1.0, 4.0, 15.0, 30.0)
"""Delays between attempts, in seconds. An attempt does not repeat downloads of complete layers."""
_FAULTS = (
    ("disk-full", r"no space left on device|disk quota exceeded"),
    ("architecture", r"no matching manifest for"),
    ("no-image", r"manifest unknown|manifest for .* not found|repository name not known|name unknown|not found"),
    ("login", r"unauthorized|authentication required|no basic auth|incorrect username|denied|forbidden"),
    ("rate", r"toomanyrequests|rate limit"),
    ("certificate", r"x509|certificate|HTTP response to HTTPS"),
)
_HINTS = {
    "disk-full": "use a larger disk: resources.disk",
    "no-image": "check the image's name and tag",
    "login": "set environment.container.login and password; if they are set, the password may be wrong or expired",
    "rate": "set environment.container.login: registries have a higher limit for logged-in users",
    "certificate": "put the registry's certificate at /etc/docker/certs.d/HOST:PORT/ca.crt on the nodes",
    "architecture": "choose a tag that is built for this node's architecture",
}
OnMessage = Callable[[str], None]
Login = Dict[str, str]
"""`{"username", "password", "server"}`; empty if there is no login."""
_COPIES = 2
"""Bytes of disk space needed per byte of the image: the engine makes a temporary copy to save or load an archive."""
_READ_TIMEOUT_S = 1800.0
"""Maximum time without data, in seconds. The engine sends nothing while it unpacks tens of gigabytes."""
_ARCHIVE_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
_HINT = "set environment.container.share to each, so that every node pulls the image, or increase resources.disk"


@dataclass
class _Layer:
    """Progress of one layer."""

    current: int = 0
    total: int = 0
    done: bool = False


class PullProgress:
    """Progress of a pull. Converts the engine's progress events to messages."""

    def __init__(self, report: OnMessage) -> None:
        self._report = report
        self._layers: dict[str, _Layer] = {}
        self._reported_at = time.monotonic()

    def take(self, line: dict[str, Any]) -> None:
        """Process one event."""
        if "error" in line:
            raise DockerApiError(0, str(require_object(line.get("errorDetail") or {}).get("message") or line["error"]))
        name, status = str(line.get("id", "")), str(line.get("status", ""))
        detail = require_object(line.get("progressDetail") or {})
        if status in ("Pulling fs layer", "Waiting"):
            self._layers.setdefault(name, _Layer())
        elif status.startswith("Retrying"):
            self._report(f"layer {name}: {status[0].lower()}{status[1:]}")
        elif name in self._layers:
            self._update_layer(name, status, detail)
        self._report_total()

    def _update_layer(self, name: str, status: str, detail: dict[str, Any]) -> None:
        layer = self._layers[name]
        if status == "Downloading" and require_number(detail.get("total") or 0) > 0:
            layer.current, layer.total = int(require_number(detail.get("current") or 0)), int(detail["total"])
        elif status in ("Download complete", "Verifying Checksum"):
            layer.current = layer.total
        elif status in ("Pull complete", "Already exists") and not layer.done:
            layer.done, layer.current = True, layer.total
            done = sum(layer.done for layer in self._layers.values())
            size = f": {size_text(layer.total)}" if layer.total else ""
            self._report(f"layer {name}{size}, {done} of {len(self._layers)} layers done")

    def _report_total(self) -> None:
        now = time.monotonic()
        if now - self._reported_at < _REPORT_S or not self._layers:
            return
        self._reported_at = now
        moved = sum(layer.current for layer in self._layers.values())
        known = sum(layer.total for layer in self._layers.values())
        self._report(f"pulling: {size_text(moved)} of at least {size_text(known)}")


def pull(
    engine: DockerApi, repository: str, tag_or_digest: str, login: Login, report: OnMessage, read_timeout_s: float
) -> None:
    """Pull an image by tag or digest. Transient errors are retried without downloading complete layers again."""
    path = "/images/create?" + urlencode({"fromImage": repository, "tag": tag_or_digest})
    for wait_s in (*_WAITS_S, None):
        pulled = PullProgress(report)
        try:
            for line in engine.lines(path, read_timeout_s=read_timeout_s, auth=login_header(login)):
                pulled.take(line)
        except (DockerApiError, OSError, http.client.HTTPException, *MALFORMED) as error:
            failure = pull_error(f"{repository}:{tag_or_digest}".replace(":sha256", "@sha256"), error, read_timeout_s)
            if failure.code != "network" or wait_s is None:
                raise failure from error
            report(f"{failure.message}; retrying in {wait_s:.0f} s")
            time.sleep(wait_s)
        else:
            return


def pull_error(name: str, error: Exception, read_timeout_s: float = 0.0) -> AgentError:
    """Return the AgentError for a failed pull. Only errors with code `network` are worth retrying."""
    if isinstance(error, TimeoutError) or ("timed out" in str(error) and isinstance(error, OSError)):
        return AgentError(f"cannot pull {name}: no data for {read_timeout_s:.0f} s", code="network", hint="try again")
    message = " ".join(str(error).split())
    code = next((code for code, pattern in _FAULTS if re.search(pattern, message, re.IGNORECASE)), "network")
    hint = _HINTS.get(code, "check that the node can reach the registry")
    return AgentError(f"cannot pull {name}: {message}", code=code, hint=hint)


def login_header(login: Login) -> str:
    """Return the login as the value of an engine API header, or an empty string. The login is never stored."""
    if not login:
        return ""
    auth = {"username": login["username"], "password": login["password"], "serveraddress": login["server"]}
    return base64.urlsafe_b64encode(json.dumps(auth).encode()).decode()


def size_text(count: int) -> str:
    """Format a size, for example `1.5 GiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:  # noqa: PLR2004
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def require_free_space(folder: str, needed: int, what: str, hint: str) -> None:
    """Check that a disk has `needed` bytes free. The error message starts with `what`, a clause without a period.

    If the free space cannot be determined, the check passes.
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return
    if needed > free:
        raise AgentError(f"{what}, but {folder} has only {size_text(free)} free", code="disk-full", hint=hint)


def write_archive(image_id: str, report: Callable[[str], None]) -> IO[bytes]:
    """Write an image archive to an unnamed file, which the kernel deletes when the file is closed."""
    engine = DockerApi(find_docker_endpoint())
    image = engine.image(image_id)
    if image is None:
        raise AgentError(f"{image_id} is not on this node", code="no-image")
    size = int(image.get("Size") or 0)
    folder = agent_folder("images")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    root = str(check_engine(engine).get("DockerRootDir") or "/")
    # Usually both directories are on one disk, which must then hold the archive and the engine's copy at the same time.
    _has_room(root, size * (_COPIES if _one_disk(root, folder) else 1))
    _has_room(folder, size)
    report(f"creating an image archive for the other nodes: {size_text(size)}")
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the caller closes it
    try:
        for data in engine.save(image_id, read_timeout_s=_READ_TIMEOUT_S):
            file.write(data)
        file.flush()
    except (OSError, DockerApiError, http.client.HTTPException) as error:
        file.close()
        raise AgentError(f"cannot create an archive of {image_id}: {error}", code="disk-full", hint=_HINT) from error
    return file


def load_from_peer(engine: DockerApi, info: dict[str, Any], image_id: str, size: int, peer: Peer) -> None:
    """Load an image from the archive that another node serves. An interrupted transfer is resumed."""
    _has_room(str(info.get("DockerRootDir") or "/"), size * _COPIES)
    try:
        engine.load(_pieces(peer, size), read_timeout_s=_READ_TIMEOUT_S)
    except DockerApiError as error:
        raise AgentError(f"the Docker engine rejected the image: {error}", hint=_HINT) from error
    except (OSError, http.client.HTTPException) as error:
        raise AgentError(
            f"the Docker engine stopped responding while loading the image: {error}", code="network", hint=_HINT
        ) from error
    if engine.image(image_id) is None:
        # The ID is a digest of the image's content, so this also verifies the transfer.
        message = f"the image loaded from the archive of {image_id} has a different ID"
        raise AgentError(message, hint="set environment.container.share to each, so that every node pulls the image")


def _pieces(peer: Peer, size: int) -> Iterator[bytes]:
    """Yield the archive as it arrives."""
    wanted = RequestedFile(f"{peer.url}/archive", "the image's archive", size, None)
    with closing(HttpConnections(peer)) as web:
        yield from _download(web, wanted, size)


def _download(web: HttpConnections, wanted: RequestedFile, size: int) -> Iterator[bytes]:
    have, waits = 0, [*_ARCHIVE_WAITS_S]
    while have < size:
        problem = "connection closed"
        try:
            for data in web.body(_request_rest(web, wanted, have)):
                chunk = bytes(data[: size - have])
                have, waits = have + len(chunk), [*_ARCHIVE_WAITS_S]
                yield chunk
                if len(chunk) < len(data):
                    web.drop()
                    return
        except TransientError as error:
            problem = str(error)
        if have < size:
            web.drop()
            _wait_or_fail(waits, problem)


def _request_rest(web: HttpConnections, wanted: RequestedFile, have: int) -> http.client.HTTPResponse:
    """Request the bytes from `have` on."""
    answer = web.get(wanted, have, wanted.size - 1)
    if have and answer.status != http.client.PARTIAL_CONTENT:
        raise TransientError("the server restarted the transfer from the beginning")
    return answer


def _wait_or_fail(waits: list[float], problem: str) -> None:
    if not waits:
        raise AgentError(f"cannot fetch the image from the other node: {problem}", code="network", hint=_HINT)
    time.sleep(waits.pop(0))


def _one_disk(path: str, other: str) -> bool:
    try:
        return os.stat(path).st_dev == os.stat(other).st_dev
    except OSError:
        return True


def _has_room(folder: str, needed: int) -> None:
    require_free_space(folder, needed, f"an image archive temporarily needs up to {size_text(needed)}", _HINT)
