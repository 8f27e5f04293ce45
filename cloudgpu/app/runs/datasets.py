"""List the files of a recipe's datasets with sizes and checksums, on the web too, before anything is launched."""

import hashlib
import http.client
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, urlsplit

from cloudgpu.backends.base import Backend
from cloudgpu.errors import BadRequestError, RecipeError, UsageError
from cloudgpu.files import MANIFEST_BYTES, open_for_reading, read_text
from cloudgpu.node.agent.fetch.bounded_http import REDIRECTS, Client, SourceResponse, must_block_local, redirect_url
from cloudgpu.recipe.data_rules import find_unusable_name
from cloudgpu.recipe.schema import Data, Recipe
from cloudgpu.recipe.sources import source_of
from cloudgpu.run.dataset_copies import Files, RemoteFile
from cloudgpu.run.s3_transfers import NO_SUCH_KEY, list_resume_files
from cloudgpu.ssh.transfer.local_tree import files_to_send
from cloudgpu.targets import is_simulated
from cloudgpu.text import plural, printable
from cloudgpu.workers import Workers

_WEB_REQUESTS_AT_ONCE = 8
_WEB_TIMEOUT_S = 30.0
_REDIRECTS = 10
_SIZE = re.compile(r"[0-9]{1,18}")
"""A size in ASCII digits. With at most 18 digits, it is below 2^63."""
_RANGE = re.compile(r"bytes 0-0/([0-9]{1,18})")
_NO_RANGE = re.compile(r"bytes \*/([0-9]{1,18})")
_LINE = re.compile(r"^(?P<sha>[0-9a-fA-F]{64}) [ *](?P<path>.+)$")
_URL_LIFE_S = 6 * 3600
_SHOWN = 100


def put_rehearsal_objects(recipe: Recipe, base: Path, backend: Backend) -> int:
    """Upload the objects of the recipe's `rehearsal` section to the simulated buckets. Return the number of bytes sent.

    Raises:
        RecipeError: A source is not a directory.
        CloudError: The rehearsal endpoint rejected a request.
    """
    if recipe.rehearsal is None or not is_simulated(backend.target):
        return 0
    objects = {url: source for url, source in recipe.rehearsal.objects.items() if url.startswith("s3://")}
    for source in objects.values():
        if not (base / source).is_dir():
            raise RecipeError(f"rehearsal.objects: {base / source} is not a directory")
    return sum(backend.put_objects(url, base / source) for url, source in objects.items())


def dataset_lister(backend: Backend, base: Path) -> Files:
    """Return a function that lists a dataset's files with their known checksums and, for S3, presigned URLs.

    The function also verifies the checksums of local files, because the upload does not verify them.
    """
    listed: dict[str, Sequence[RemoteFile]] = {}

    def files(dataset: Data) -> Sequence[RemoteFile]:
        kind = source_of(dataset.source).kind
        manifest = None if dataset.manifest is None else base / dataset.manifest
        if kind == "s3":
            found = _with_checksums(dataset, backend.objects(dataset.source, expires_s=_URL_LIFE_S), manifest)
            _require_restored(dataset, found)
            return found
        if dataset.name not in listed:
            listed[dataset.name] = _local(dataset, base) if kind == "local" else _web(dataset, manifest)
        return listed[dataset.name]

    return files


def _require_restored(dataset: Data, files: Sequence[RemoteFile]) -> None:
    """Check that S3 can return every object."""
    archived = [file for file in files if file.archived]
    if archived:
        first, count = archived[0], plural(len(archived), "object")
        raise BadRequestError(
            f"dataset {dataset.name}: {count} under {dataset.source} cannot be read until restored, such as "
            f"{printable(first.relative)[:_SHOWN]} ({printable(first.archived)[:_SHOWN]})",
            code="InvalidObjectState",
            hint="restore the objects with `aws s3api restore-object` and wait until that is done, or correct `from`",
        )


def check_checkpoint(recipe: Recipe, backend: Backend, files: Files) -> None:
    """Check that the checkpoint to resume from and the buckets for checkpoints and outputs exist.

    Raises:
        CloudGpuError: A bucket or the checkpoint does not exist or cannot be read.
    """
    list_resume_files(recipe, files)
    for to in filter(None, (recipe.checkpoint.to if recipe.checkpoint else None, recipe.outputs_to)):
        _require_bucket(backend, to.partition("{")[0])


def _require_bucket(backend: Backend, url: str) -> None:
    """Check that a bucket exists. An empty bucket is valid."""
    try:
        backend.objects(url, expires_s=1)
    except BadRequestError as err:
        if err.code != NO_SUCH_KEY:
            raise


def _web(dataset: Data, manifest: Path | None) -> Sequence[RemoteFile]:
    names = () if manifest is None else tuple(read_manifest(manifest))
    return _with_checksums(dataset, list_web_files(dataset, names), manifest)


def _with_checksums(dataset: Data, files: Sequence[RemoteFile], manifest: Path | None) -> Sequence[RemoteFile]:
    """Return the files with the checksums from the recipe or the manifest, or unchanged if there are none."""
    if manifest is not None:
        return _in_manifest(dataset, files, manifest)
    if dataset.sha256 is None:
        return files
    if len(files) != 1:
        message = f"dataset {dataset.name}: sha256 applies to a single file, but {dataset.source} has {len(files)}"
        raise RecipeError(message, hint="write a manifest: sha256sum FILE... >sums.txt")
    return [replace(files[0], sha256=dataset.sha256.lower())]


def _local(dataset: Data, base: Path) -> Sequence[RemoteFile]:
    source = (base / dataset.source).resolve()
    if source.is_file():
        names: Sequence[str] = (source.name,)
        source = source.parent
    else:
        names = _names_below(dataset, source)
    files = [RemoteFile("", name, (source / name).lstat().st_size, None) for name in names]
    if dataset.manifest is None and dataset.sha256 is None:
        return files
    matched = _with_checksums(dataset, files, None if dataset.manifest is None else base / dataset.manifest)
    for file in matched:
        digest = _digest(source / file.relative)
        if digest != file.sha256:
            message = f"dataset {dataset.name}: {source / file.relative} has sha256 {digest}, not {file.sha256}"
            hint = "restore the file if it was changed or damaged, or correct the checksum"
            raise RecipeError(message, hint=hint)
    return matched


def _names_below(dataset: Data, source: Path) -> Sequence[str]:
    try:
        listing = files_to_send(source)
    except UsageError as err:
        message = f"dataset {dataset.name}: {err.message}"
        raise RecipeError(message, hint="set `from` to a path relative to the recipe, or to s3://...") from err
    if listing.skipped:
        # Training on part of the data would look like a success.
        named = [f"{entry.path}: {entry.reason}" for entry in listing.skipped]
        count = f"{len(named)} {'file' if len(named) == 1 else 'files'}"
        message = f"dataset {dataset.name}: {count} in {source} cannot be uploaded; first: {printable(named[0])}"
        hint = "replace them with regular files, or exclude them with a .cloudgpuignore file in that directory"
        raise RecipeError(message, problems=[printable(line) for line in named], hint=hint)
    return listing.files


def _digest(path: Path) -> str:
    try:
        with open_for_reading(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as err:
        raise RecipeError(f"cannot read {path}: {err.strerror}") from err


def read_manifest(path: Path) -> Mapping[str, str]:
    """Read a manifest in `sha256sum` format. Return the SHA-256 digest of each relative path.

    Raises:
        RecipeError: The file cannot be read, has an invalid line, lists a file with two checksums, or lists a file
            that a node cannot create.
    """
    try:
        lines = read_text(path, MANIFEST_BYTES).split("\n")
    except OSError as err:
        message = f"cannot read manifest {path}: {err}"
        raise RecipeError(message) from err
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            message = f"{path}:{number}: expected `<sha256>  <path>` as sha256sum prints it"
            raise RecipeError(message)
        name, digest = match["path"].removeprefix("./"), match["sha"].lower()
        if sums.setdefault(name, digest) != digest:
            message = f"{path}:{number}: {printable(name)} is listed twice with different checksums"
            raise RecipeError(message, hint="remove one of the lines")
    problem = find_unusable_name(sums)
    if problem is not None:
        name, why = problem
        message = f"{path} lists {printable(name)[:_SHOWN]!r}, which cannot be created on a node: {why}"
        raise RecipeError(message, hint="rename the file, or remove it from the manifest")
    return sums


def _in_manifest(dataset: Data, files: Sequence[RemoteFile], manifest: Path) -> Sequence[RemoteFile]:
    sums = read_manifest(manifest)
    by_path = {file.relative: file for file in files}
    missing = sorted(set(sums) - set(by_path))
    if missing:
        message = (
            f"dataset {dataset.name}: {manifest.name} lists {missing[0]}, which does not exist in {dataset.source}"
        )
        raise RecipeError(message, hint="upload the file, or correct the manifest")
    # Only files in the manifest are staged: an object added later is not part of the dataset.
    return [replace(by_path[path], sha256=digest) for path, digest in sums.items()]


def list_web_files(dataset: Data, names: Sequence[str]) -> Sequence[RemoteFile]:
    """Return the file at the dataset's address or, if the address ends with a slash, the named files below it.

    Raises:
        RecipeError: The server is unreachable, does not have a file, or does not report its size.
    """
    if not dataset.source.endswith("/"):
        return [_web_file(dataset, dataset.source, dataset.source.rpartition("/")[2])]
    with Workers(_WEB_REQUESTS_AT_ONCE) as workers:
        return list(workers.map(lambda name: _web_file(dataset, dataset.source + quote(name), name), names))


def _web_file(dataset: Data, url: str, name: str) -> RemoteFile:
    """Request the first byte and read the size from the response, because some servers do not support HEAD."""
    try:
        response = _follow_redirects(url)
    except (OSError, http.client.HTTPException) as err:
        message = f"dataset {dataset.name}: cannot reach {url}: {_reason(err)}"
        raise RecipeError(message, hint="correct `from`, or try again") from err
    except ValueError as err:
        message = f"dataset {dataset.name}: {url}: the server redirects to an invalid address"
        raise RecipeError(message, hint="open the address in a browser, and use the final address in `from`") from err
    if response.status >= HTTPStatus.MULTIPLE_CHOICES and response.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        message = f"dataset {dataset.name}: {url}: the server returned status {response.status}"
        raise RecipeError(message, hint="open the address in a browser, and correct `from`")
    size = _size_of_response(response)
    if size is None:
        message = f"dataset {dataset.name}: {url}: the server does not report the size of the file"
        raise RecipeError(message, hint="download the file and use its local path in `from`")
    tag = response.headers.get("etag", "")
    return RemoteFile(url, name, size, None, "" if tag.startswith("W/") else tag.strip('"'))


def _follow_redirects(url: str) -> SourceResponse:
    """Follow redirects and return the final response."""
    first, client = url, Client(_WEB_TIMEOUT_S, most_bytes=0)
    headers = {"Range": "bytes=0-0", "Accept-Encoding": "identity", "User-Agent": "cloudgpu"}
    for _ in range(_REDIRECTS):
        response = client.send(url, headers, guarded=must_block_local(first, url))
        if response.status not in REDIRECTS:
            return response
        url = redirect_url(url, response.headers.get("location", ""))
    raise ValueError(urlsplit(url).hostname)


def _size_of_response(response: SourceResponse) -> int | None:
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
