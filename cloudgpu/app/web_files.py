"""Files on the web: how large they are, and what their servers call their content. Asked before anything is bought."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from cloudgpu.errors import RecipeError
from cloudgpu.recipe.data import Data
from cloudgpu.run.files import RemoteFile

_AT_ONCE = 8
_TIMEOUT_S = 30.0


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
    headers = {"Range": "bytes=0-0", "Accept-Encoding": "identity"}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - http and https only, as the recipe checks
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return _file(dataset, url, name, answer)
    except urllib.error.HTTPError as err:
        with err:
            if err.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                return RemoteFile(url, name, 0, None)  # it is empty
            message = f"dataset {dataset.name}: {url}: the server answered {err.code} {err.reason}"
        raise RecipeError(message, hint="open the address in a browser, and correct `from`") from err
    except OSError as err:
        message = f"dataset {dataset.name}: {url} cannot be reached: {getattr(err, 'reason', err)}"
        raise RecipeError(message, hint="correct `from`, or try again") from err


def _file(dataset: Data, url: str, name: str, answer: http.client.HTTPResponse) -> RemoteFile:
    whole = (answer.getheader("Content-Range") or "").rpartition("/")[2]
    size = whole if answer.status == http.client.PARTIAL_CONTENT else answer.getheader("Content-Length") or ""
    if not size.isdigit():
        message = f"dataset {dataset.name}: {url}: the server does not say how large it is"
        raise RecipeError(message, hint="download it, and name its path")
    tag = answer.getheader("ETag") or ""
    return RemoteFile(url, name, int(size), None, "" if tag.startswith("W/") else tag.strip('"'))
