"""Dataset files, and how a dataset is copied from its source to the nodes, or from node to node.

In a peer transfer, every node that has the files serves a few nodes that lack them: 64 nodes take three rounds, and
the source is read once. A node serves files only until its receivers have them.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cloudgpu.errors import RemoteCommandError
from cloudgpu.recipe.schema import Data
from cloudgpu.recipe.sources import source_of
from cloudgpu.run.agent import SERVE_PEERS, Agent, AgentReplyError, count_field, run_on_agents
from cloudgpu.run.progress import Note, Report, report_transfer
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import Raw, RemoteCommand
from cloudgpu.ssh.keys import generate_certificate
from cloudgpu.ssh.transfer.local_tree import files_to_send

_T = TypeVar("_T")
FILES_PER_REQUEST = 2000
"""Files per `fetch` request. Each file has a presigned URL of up to 2000 bytes."""
_RENEWALS = 20
"""Maximum number of times that a batch's presigned URLs are renewed. A presigned URL is valid for six hours."""
WIDTH = 4
"""Number of nodes that one node serves at a time. More nodes would share the bandwidth without finishing sooner."""
PeerAddress = Mapping[str, Any]
"""Connection parameters of the serving node (URL, token, certificate), and the archive size."""


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
        endpoint_url: URL of an S3-compatible service; empty for AWS.
    """

    region: str = ""
    endpoint_url: str = ""


Files = Callable[["Data"], Sequence[RemoteFile]]
"""Function that lists a dataset's files with fresh URLs."""

BucketServices = Callable[[str], S3Service]
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
    bucket_service: BucketServices
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
    peer: Mapping[str, Any] | None = None,
) -> int:
    """Download files on one node in batches of `FILES_PER_REQUEST` and return the bytes transferred.

    If the files' URLs refer to another node, `peer` contains the token and certificate of that node.
    """
    create_user_directory(agent.host, target)
    with report_transfer(way.report, f"data {dataset.name}", agent.host.node.index) as on_bytes:
        return sum(
            _fetch_batch(agent, dataset, batch, target, way, peer, on_done=on_done)
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
    peer: Mapping[str, Any] | None,
    *,
    on_done: Callable[[int], None],
) -> int:
    """Download a batch. If the presigned URLs expire, renew them and continue with the files that are missing."""
    common_fields = {"cache": dataset_index_key(dataset, target), "roots": [target], **({"hand": peer} if peer else {})}
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


def transfer_rounds(have: int, want: int, width: int = WIDTH) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the transfers for each round as (source, target) positions. The first `have` positions have the files.

    In a round, each source serves at most `width` targets, evenly distributed.
    """
    have_now, transfers = have, []
    while have_now < have + want:
        targets = min(have_now * width, have + want - have_now)
        transfers.append(tuple((position % have_now, have_now + position) for position in range(targets)))
        have_now += targets
    return tuple(transfers)


def distribute_to_peers(
    agents: Sequence[Agent],
    have: int,
    what: Callable[[Agent], Mapping[str, Any]],
    take: Callable[[Agent, PeerAddress], _T],
    report: Report,
) -> dict[int, _T]:
    """Distribute files from the first `have` agents to all other agents. Return the results of `take` by node index.

    Args:
        agents: Agents in the order in which they receive the files. The first `have` agents already have the files.
        have: Number of agents that have the files.
        what: Returns the request fields that specify the files on a serving agent.
        take: Downloads the files on an agent from a serving node.
        report: Called with progress messages.
    """
    results: dict[int, _T] = {}
    for pairs in transfer_rounds(have, len(agents) - have):
        receivers: dict[int, list[Agent]] = {}
        for sender, receiver in pairs:
            receivers.setdefault(sender, []).append(agents[receiver])
        transfers = {
            agents[sender].host.node.index: _PeerTransfer(receivers[sender], what(agents[sender]))
            for sender in receivers
        }
        senders = [agents[sender] for sender in receivers]
        for answers in run_on_agents(senders, partial(_serve_receivers, transfers, take, report)).values():
            results |= answers
    return results


@dataclass(frozen=True)
class _PeerTransfer:
    """The files that one node serves in a round, and the nodes that download them."""

    receivers: Sequence[Agent]
    what: Mapping[str, Any]


def _serve_receivers(
    transfers: Mapping[int, _PeerTransfer], take: Callable[[Agent, PeerAddress], _T], report: Report, sender: Agent
) -> dict[int, _T]:
    transfer = transfers[sender.host.node.index]
    with serve_files(sender, transfer.what, report) as served:
        return run_on_agents(transfer.receivers, lambda receiver: take(receiver, served))


@contextmanager
def serve_files(agent: Agent, what: Mapping[str, Any], report: Report) -> Iterator[PeerAddress]:
    """Serve files from a node while the context is open."""
    node, certificate, token = agent.host.node, generate_certificate(datetime.now(UTC)), secrets.token_urlsafe(32)
    secret = {"token": token, "cert": certificate.pem, "key": certificate.key}
    stream = agent.stream(SERVE_PEERS, {**what, "address": node.private_address, **secret})
    try:
        answer: Mapping[str, Any] = {}
        answers = agent.answers(
            stream, SERVE_PEERS
        )  # keep a reference: garbage-collecting the generator closes the stream
        for answer in answers:
            if "port" in answer:
                break
            report(Note(str(answer.get("progress", "")), node.index, detail=True))
        if "port" not in answer:
            raise RemoteCommandError(
                f"node {node.index} ({node.instance_id}): the agent exited before it could serve files",
                tail=stream.stderr.strip().splitlines()[-10:],
                hint="set share: each, so that every node downloads from the source",
            )
        host = f"[{node.private_address}]" if ":" in node.private_address else node.private_address
        yield {
            "hand": {"url": f"https://{host}:{answer['port']}", "token": token, "cert": certificate.pem},
            "size": answer["size"],
        }
    finally:
        stream.close()
