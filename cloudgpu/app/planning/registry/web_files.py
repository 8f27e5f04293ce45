"""Read the size and ETag of files on the web before anything is launched."""

import http.client
import re
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import quote, urlsplit

from cloudgpu.errors import RecipeError
from cloudgpu.node.agent.fetch.bounded_http import REDIRECTS, Client, SourceResponse, must_block_local, redirect_url
from cloudgpu.recipe.schema import Data
from cloudgpu.run.data.files import RemoteFile
from cloudgpu.workers import Workers

_AT_ONCE = 8
_WITHIN_S = 30.0
_HOPS = 10
_SIZE = re.compile(r"[0-9]{1,18}")
"""A size in ASCII digits. With at most 18 digits, it is below 2^63."""
_RANGE = re.compile(r"bytes 0-0/([0-9]{1,18})")
_NO_RANGE = re.compile(r"bytes \*/([0-9]{1,18})")


def list_web_files(dataset: Data, names: Sequence[str]) -> Sequence[RemoteFile]:
    """Return the file at the dataset's address or, if the address ends with a slash, the named files below it.

    Raises:
        RecipeError: The server is unreachable, does not have a file, or does not report its size.
    """
    if not dataset.source.endswith("/"):
        return [_seen(dataset, dataset.source, dataset.source.rpartition("/")[2])]
    with Workers(_AT_ONCE) as workers:
        return list(workers.map(lambda name: _seen(dataset, dataset.source + quote(name), name), names))


def _seen(dataset: Data, url: str, name: str) -> RemoteFile:
    """Request the first byte and read the size from the response, because some servers do not support HEAD."""
    try:
        response = _followed(url)
    except (OSError, http.client.HTTPException) as err:
        message = f"dataset {dataset.name}: cannot reach {url}: {_reason(err)}"
        raise RecipeError(message, hint="correct `from`, or try again") from err
    except ValueError as err:
        message = f"dataset {dataset.name}: {url}: the server redirects to an invalid address"
        raise RecipeError(message, hint="open the address in a browser, and use the final address in `from`") from err
    if response.status >= HTTPStatus.MULTIPLE_CHOICES and response.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        message = f"dataset {dataset.name}: {url}: the server returned status {response.status}"
        raise RecipeError(message, hint="open the address in a browser, and correct `from`")
    size = _size(response)
    if size is None:
        message = f"dataset {dataset.name}: {url}: the server does not report the size of the file"
        raise RecipeError(message, hint="download the file and use its local path in `from`")
    tag = response.headers.get("etag", "")
    return RemoteFile(url, name, size, None, "" if tag.startswith("W/") else tag.strip('"'))


def _followed(url: str) -> SourceResponse:
    """Follow redirects and return the final response."""
    first, client = url, Client(_WITHIN_S, most_bytes=0)
    headers = {"Range": "bytes=0-0", "Accept-Encoding": "identity", "User-Agent": "cloudgpu"}
    for _ in range(_HOPS):
        response = client.send(url, headers, guarded=must_block_local(first, url))
        if response.status not in REDIRECTS:
            return response
        url = redirect_url(url, response.headers.get("location", ""))
    raise ValueError(urlsplit(url).hostname)


def _size(response: SourceResponse) -> int | None:
    """Return the size of the whole file, or None if the server does not report it consistently."""
    content_range = response.headers.get("content-range", "")
    match: re.Match[str] | None = None
    if response.status == HTTPStatus.PARTIAL_CONTENT:
        match = _RANGE.fullmatch(content_range)
        return int(match[1]) if match and int(match[1]) else None
    if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        match = _NO_RANGE.fullmatch(content_range)
        # There is no first byte: either the file is empty, or the response is inconsistent.
        return 0 if not content_range or (match and not int(match[1])) else None
    length = response.headers.get("content-length", "") if response.status == HTTPStatus.OK else ""
    return int(length) if _SIZE.fullmatch(length) else None


def _reason(error: Exception) -> str:
    """Describe the failure without quoting the server's response."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, OSError):
        return cause.strerror or ("timed out" if isinstance(cause, TimeoutError) else type(cause).__name__)
    return "not an HTTP response"
