"""An image as one file: written by this node's engine, or taken in as it comes from the node that has it."""

from __future__ import annotations

import http.client
import os
import tempfile
import time
from contextlib import closing
from typing import IO, Any, Callable, Iterator

from ..agent_home import own_folder
from ..errors import AgentError
from ..fetch.from_peer import Peer
from ..fetch.http import HttpConnections, TransientError
from ..fetch.request import RequestedFile
from .docker_api import Engine, RefusedError, checked, locate
from .pull import require_free_space, size_text

_TIMES = 2
"""The engine unpacks into a folder of its own before it makes an archive of it, and before it makes layers of one."""
_SILENCE_S = 1800.0
"""The engine says nothing while it unpacks an image of tens of gigabytes."""
_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
_HINT = "environment.container.share: each, then every node pulls for itself; or take a larger disk: resources.disk"


def write_archive(image_id: str, tell: Callable[[str], None]) -> IO[bytes]:
    """The archive of an image, in a file without a name: nothing of it stays, whatever ends this process.

    Raises:
        AgentError: There is no engine, no such image, or no room.
    """
    engine = Engine(locate())
    found = engine.image(image_id)
    if found is None:
        raise AgentError(f"{image_id} is not on this node", code="no-image")
    size = int(found.get("Size") or 0)
    folder = own_folder("images")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    root = str(checked(engine).get("DockerRootDir") or "/")
    # Where both are one disk, as they usually are, it holds the archive and the engine's own copy at once.
    _has_room(root, size * (_TIMES if _one_disk(root, folder) else 1))
    _has_room(folder, size)
    tell(f"making an archive of the image for the other nodes: {size_text(size)}")
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the caller has it as long as it hands it over
    try:
        for data in engine.save(image_id, silence_s=_SILENCE_S):
            file.write(data)
        file.flush()
    except (OSError, RefusedError, http.client.HTTPException) as error:
        file.close()
        raise AgentError(f"cannot make an archive of {image_id}: {error}", code="disk-full", hint=_HINT) from error
    return file


def load_from_peer(engine: Engine, info: dict[str, Any], image_id: str, size: int, hand: Peer) -> None:
    """Load an image from the archive that another node hands over; a broken connection goes on where it broke.

    Raises:
        AgentError: It did not come, there is no room, or the engine made another image of it.
    """
    _has_room(str(info.get("DockerRootDir") or "/"), size * _TIMES)
    try:
        engine.load(_pieces(hand, size), silence_s=_SILENCE_S)
    except RefusedError as error:
        raise AgentError(f"the engine does not take the image: {error.message}", hint=_HINT) from error
    except (OSError, http.client.HTTPException) as error:
        raise AgentError(f"the engine fell silent over the image: {error}", code="network", hint=_HINT) from error
    if engine.image(image_id) is None:
        # The id is a digest of all that the image is, so this is also the check that it came unharmed.
        message = f"the engine made another image of the archive of {image_id}"
        raise AgentError(message, hint="environment.container.share: each, then every node pulls for itself")


def _pieces(hand: Peer, size: int) -> Iterator[bytes]:
    """The archive as it comes.

    Raises:
        AgentError: It does not.
    """
    wanted = RequestedFile(f"{hand.url}/archive", "the image's archive", size, None)
    with closing(HttpConnections(hand)) as web:
        yield from _taken(web, wanted, size)


def _taken(web: HttpConnections, wanted: RequestedFile, size: int) -> Iterator[bytes]:
    have, waits = 0, [*_WAITS_S]
    while have < size:
        trouble = "it hung up"
        try:
            for data in web.body(_going_on(web, wanted, have)):
                piece = bytes(data[: size - have])
                have, waits = have + len(piece), [*_WAITS_S]
                yield piece
                if len(piece) < len(data):
                    web.drop()
                    return
        except TransientError as passing:
            trouble = str(passing)
        if have < size:
            web.drop()
            _wait(waits, trouble)


def _going_on(web: HttpConnections, wanted: RequestedFile, have: int) -> http.client.HTTPResponse:
    """The answer that holds what is missing.

    Raises:
        Passing: It begins anew: the engine has the beginning already.
    """
    answer = web.get(wanted, have, wanted.size - 1)
    if have and answer.status != http.client.PARTIAL_CONTENT:
        raise TransientError("it sends the archive from its beginning again")
    return answer


def _wait(waits: list[float], trouble: str) -> None:
    if not waits:
        raise AgentError(f"the image does not come from the other node: {trouble}", code="network", hint=_HINT)
    time.sleep(waits.pop(0))


def _one_disk(one: str, other: str) -> bool:
    try:
        return os.stat(one).st_dev == os.stat(other).st_dev
    except OSError:
        return True


def _has_room(folder: str, needed: int) -> None:
    require_free_space(folder, needed, f"an archive of the image takes up to {size_text(needed)} for a while", _HINT)
