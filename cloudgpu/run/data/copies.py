"""Dataset files, and how a dataset is copied from its source to the nodes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cloudgpu.recipe.schema import Data
from cloudgpu.recipe.sources import source_of
from cloudgpu.run.agent import Agent, AgentReplyError, count_field, run_on_agents
from cloudgpu.run.progress import Note, Report, report_transfer
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import Raw, RemoteCommand
from cloudgpu.ssh.transfer.local_tree import files_to_send

_T = TypeVar("_T")
FILES_PER_REQUEST = 2000
"""Files per `fetch` request. Each file has a presigned URL of up to 2000 bytes."""
_RENEWALS = 20
"""Maximum number of times that a batch's presigned URLs are renewed. A presigned URL is valid for six hours."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a dataset: a temporary URL and the expected content.

    Attributes:
        url: Presigned URL. The URL is secret: it is sent only through standard input and never shown.
        sha256: Hexadecimal checksum, or None if it is unknown.
        etag: The source's identifier for the content; empty if unknown. Copying stops if the identifier changes.
        archived: S3 storage class or tier of an object that must be restored before it can be read; empty otherwise.
    """

    url: str = field(repr=False)
    relative: str
    size: int
    sha256: str | None
    etag: str = ""
    archived: str = ""


@dataclass(frozen=True)
class S3Service:
    """The S3 service that hosts a bucket.

    Attributes:
        region: Region of the bucket; empty for the nodes' region.
        endpoint: URL of an S3-compatible service; empty for AWS.
    """

    region: str = ""
    endpoint: str = ""


Files = Callable[["Data"], Sequence[RemoteFile]]
"""Function that lists a dataset's files with fresh URLs."""

Services = Callable[[str], S3Service]
"""Function that returns the S3 service for a bucket URL."""


def aws_s3_service(_url: str) -> S3Service:
    """Return AWS S3 in the region of the nodes."""
    return S3Service()


@dataclass(frozen=True)
class DistributionSettings:
    """Settings for distributing data.

    Attributes:
        base: Base directory for relative paths in the recipe.
    """

    base: Path
    files: Files
    services: Services
    report: Report


def copy_dataset(
    dataset: Data, agents: Sequence[Agent], listed: Sequence[RemoteFile], way: DistributionSettings
) -> int:
    """Copy a dataset from its source to every node and return the bytes transferred."""
    return (_send if source_of(dataset.source).kind == "local" else download_dataset)(dataset, agents, listed, way)


def download_dataset(
    dataset: Data, agents: Sequence[Agent], listed: Sequence[RemoteFile], way: DistributionSettings
) -> int:
    """Download a dataset on every node and return the bytes transferred."""
    moved = run_on_agents(
        agents, lambda agent: download_files_to(agent, f"{agent.root}{dataset.to}", dataset, listed, way)
    )
    return sum(moved.values())


def download_files_to(
    agent: Agent,
    target: str,
    dataset: Data,
    listed: Sequence[RemoteFile],
    way: DistributionSettings,
    hand: Mapping[str, Any] | None = None,
) -> int:
    """Download files on one node in batches of `FILES_PER_REQUEST` and return the bytes transferred.

    If the files' URLs refer to another node, `hand` contains the token and certificate of that node.
    """
    create_user_directory(agent.host, target)
    with report_transfer(way.report, f"data {dataset.name}", agent.host.node.index) as on_bytes:
        return sum(
            _fetch_batch(agent, dataset, batch, target, way, hand, on_done=on_done)
            for batch, on_done in batches(listed, [file.size for file in listed], on_bytes)
        )


def batches(
    files: Sequence[_T], sizes: Sequence[int], on_bytes: Callable[[int, int], None]
) -> Iterator[tuple[Sequence[_T], Callable[[int], None]]]:
    """Yield the files of one `fetch` request after another, and the function that receives its bytes so far.

    The bytes of all requests are passed on to `on_bytes`, beside the size of all files.
    """
    total, before = sum(sizes), 0

    def on_done(done: int) -> None:
        on_bytes(min(before + done, total), total)

    for first in range(0, len(files), FILES_PER_REQUEST):
        yield files[first : first + FILES_PER_REQUEST], on_done
        before += sum(sizes[first : first + FILES_PER_REQUEST])
        on_done(0)


def fetch(agent: Agent, request: Mapping[str, Any], on_done: Callable[[int], None]) -> dict[str, Any]:
    """Download files on a node and return the agent's answer.

    `on_done` receives the bytes that are present meanwhile.
    """

    def on_line(line: Mapping[str, Any]) -> None:
        if "done" in line:
            on_done(count_field(line, "done"))

    return agent.ask("fetch", request, on_line)


def _fetch_batch(
    agent: Agent,
    dataset: Data,
    batch: Sequence[RemoteFile],
    target: str,
    way: DistributionSettings,
    hand: Mapping[str, Any] | None,
    *,
    on_done: Callable[[int], None],
) -> int:
    """Download a batch. If the presigned URLs expire, renew them and continue with the files that are missing."""
    common_fields = {"cache": dataset_index_key(dataset, target), "roots": [target], **({"hand": hand} if hand else {})}
    for renewal in range(_RENEWALS + 1):
        try:
            files = [_file_entry(file, target) for file in batch]
            return count_field(fetch(agent, {"files": files, **common_fields}, on_done), "bytes")
        except AgentReplyError as err:
            if err.code != "expired" or renewal == _RENEWALS:
                raise
        way.report(Note(f"data {dataset.name}: the URLs have expired and are being renewed", agent.host.node.index))
        batch = _renewed(dataset, batch, way)
    return 0


def _renewed(dataset: Data, batch: Sequence[RemoteFile], way: DistributionSettings) -> Sequence[RemoteFile]:
    """Return the same files with fresh URLs."""
    fresh = {file.relative: file for file in way.files(dataset)}
    for file in batch:
        current = fresh.get(file.relative)
        if current is None or (current.size, current.etag) != (file.size, file.etag):
            message = f"dataset {dataset.name}: {file.relative} was changed or deleted at the source during the copy"
            raise AgentReplyError(message, code="changed", hint="run the command again")
    return [fresh[file.relative] for file in batch]


def _send(dataset: Data, agents: Sequence[Agent], listed: Sequence[RemoteFile], way: DistributionSettings) -> int:
    root = local_root(dataset, way)

    def send(agent: Agent) -> int:
        target = f"{agent.root}{dataset.to}"
        create_user_directory(agent.host, target)
        with report_transfer(way.report, f"data {dataset.name}", agent.host.node.index) as on_bytes:
            return agent.host.send_tree(root, local_names(dataset, listed, way), target, on_bytes)

    return sum(run_on_agents(agents, send).values())


def local_root(dataset: Data, way: DistributionSettings) -> Path:
    """Return the directory of a local dataset, or the parent directory if the dataset is a file."""
    source = (way.base / dataset.source).resolve()
    return source if source.is_dir() else source.parent


def local_names(dataset: Data, listed: Sequence[RemoteFile], way: DistributionSettings) -> list[str]:
    """Return the files of a local dataset and, unless a manifest lists its files, its empty directories."""
    source = way.base / dataset.source
    is_whole = dataset.manifest is None and source.is_dir()
    return [*(file.relative for file in listed), *(files_to_send(source).folders if is_whole else ())]


def dataset_index_key(dataset: Data, target: str) -> dict[str, str]:
    """Return the key of a dataset copy in the node's dataset index."""
    return {"name": dataset.name, "source": dataset.source, "to": target}


def create_user_directory(host: Host, path: str) -> None:
    """Create a directory that the login user may write to. Directories such as `/data` are created with sudo."""
    if not host.try_run(RemoteCommand("mkdir", "-p", path, Raw("&& test -w"), path)).ok:
        mkdir = ("sudo", "-n", "mkdir", "-p", path)
        host.run(RemoteCommand(*mkdir, Raw('&& sudo -n chown "$(id -u):$(id -g)"'), path))


def _file_entry(file: RemoteFile, target: str) -> dict[str, Any]:
    path = f"{target}/{file.relative}"
    return {"url": file.url, "path": path, "size": file.size, "sha256": file.sha256, "etag": file.etag}
