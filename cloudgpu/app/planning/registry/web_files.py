"""Files on the web: how large they are, and what their servers call their content. Asked before anything is bought."""

import http.client
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from urllib.parse import quote, urlsplit

from cloudgpu.errors import RecipeError
from cloudgpu.node.agent.fetch.http_limits import must_guard, redirected
from cloudgpu.node.agent.fetch.http_request import REDIRECTS, Answer, Client
from cloudgpu.recipe.data import Data
from cloudgpu.run.files import RemoteFile

_AT_ONCE = 8
_WITHIN_S = 30.0
_HOPS = 10
_SIZE = re.compile(r"[0-9]{1,18}")
"""Bytes: below 2^63, and no digits of other scripts."""
_RANGE = re.compile(r"bytes 0-0/([0-9]{1,18})")
_NO_RANGE = re.compile(r"bytes \*/([0-9]{1,18})")


def web_files(dataset: Data, names: Sequence[str]) -> Sequence[RemoteFile]:
    """The file of an address, or below one that ends with a slash the files of these names.

    Raises:
        RecipeError: One of them is not there, or its server does not say how large it is.
    """
    if not dataset.source.endswith("/"):
        return [_seen(dataset, dataset.source, dataset.source.rpartition("/")[2])]
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        return list(workers.map(lambda name: _seen(dataset, dataset.source + quote(name), name), names))


def _seen(dataset: Data, url: str, name: str) -> RemoteFile:
    """By the answer to a request for its first byte: some servers answer nothing else."""
    try:
        answer = _followed(url)
    except (OSError, http.client.HTTPException) as err:
        message = f"dataset {dataset.name}: {url} cannot be reached: {_reason(err)}"
        raise RecipeError(message, hint="correct `from`, or try again") from err
    except ValueError as err:
        message = f"dataset {dataset.name}: {url}: the server leads to another address that cannot be used"
        raise RecipeError(message, hint="open the address in a browser, and name the file's own in `from`") from err
    if answer.status >= HTTPStatus.MULTIPLE_CHOICES and answer.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        message = f"dataset {dataset.name}: {url}: the server answered {answer.status}"
        raise RecipeError(message, hint="open the address in a browser, and correct `from`")
    size = _size(answer)
    if size is None:
        message = f"dataset {dataset.name}: {url}: the server does not say how large it is"
        raise RecipeError(message, hint="download it, and name its path")
    tag = answer.headers.get("etag", "")
    return RemoteFile(url, name, size, None, "" if tag.startswith("W/") else tag.strip('"'))


def _followed(url: str) -> Answer:
    """Return the answer at the end of all redirects.

    Raises:
        OSError: There is none in time.
        HTTPException: It is no HTTP.
        ValueError: A redirect leads nowhere, or again and again to another address.
    """
    first, client = url, Client(_WITHIN_S, most_bytes=0)
    headers = {"Range": "bytes=0-0", "Accept-Encoding": "identity", "User-Agent": "cloudgpu"}
    for _ in range(_HOPS):
        answer = client.send(url, headers, guarded=must_guard(first, url))
        if answer.status not in REDIRECTS:
            return answer
        url = redirected(url, answer.headers.get("location", ""))
    raise ValueError(urlsplit(url).hostname)


def _size(answer: Answer) -> int | None:
    """Bytes of the whole file, as far as the server says so without contradicting itself."""
    given = answer.headers.get("content-range", "")
    found: re.Match[str] | None = None
    if answer.status == HTTPStatus.PARTIAL_CONTENT:
        found = _RANGE.fullmatch(given)
        return int(found[1]) if found and int(found[1]) else None
    if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        found = _NO_RANGE.fullmatch(given)
        # There is no first byte: the file is empty, or the server contradicts itself.
        return 0 if not given or (found and not int(found[1])) else None
    length = answer.headers.get("content-length", "") if answer.status == HTTPStatus.OK else ""
    return int(length) if _SIZE.fullmatch(length) else None


def _reason(error: Exception) -> str:
    """What went wrong, without what the server sent."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, OSError):
        return cause.strerror or ("it does not answer" if isinstance(cause, TimeoutError) else type(cause).__name__)
    return "it does not speak HTTP"
