"""Transfer an image between nodes as an archive that one engine saves and the others load."""

from __future__ import annotations

import http.client
import os
import tempfile
import time
from contextlib import closing
from typing import IO, Any, Callable, Iterator

from ..agent_home import agent_folder
from ..errors import AgentError
from ..fetch.from_peer import Peer
from ..fetch.http import HttpConnections, TransientError
from ..fetch.request import RequestedFile
from .docker_api import DockerApi, DockerApiError, check_engine, find_docker_endpoint
from .pull import require_free_space, size_text

_COPIES = 2
"""Bytes of disk space needed per byte of the image: the engine makes a temporary copy to save or load an archive."""
_READ_TIMEOUT_S = 1800.0
"""Maximum time without data, in seconds. The engine sends nothing while it unpacks tens of gigabytes."""
_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
_HINT = "set environment.container.share to each, so that every node pulls the image, or increase resources.disk"


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
    have, waits = 0, [*_WAITS_S]
    while have < size:
        problem = "connection closed"
        try:
            for data in web.body(_request_rest(web, wanted, have)):
                chunk = bytes(data[: size - have])
                have, waits = have + len(chunk), [*_WAITS_S]
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
