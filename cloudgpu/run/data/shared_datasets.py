"""Copy a dataset to the first node, and from there to the other nodes over the cluster network."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from cloudgpu.errors import RemoteCommandError
from cloudgpu.recipe.sections.data import Data
from cloudgpu.recipe.sources import source_of
from cloudgpu.run.agent import Agent
from cloudgpu.run.data.copies import (
    DistributionSettings,
    batches,
    copy_dataset,
    create_user_directory,
    dataset_index_key,
    download_files_to,
    fetch,
    local_names,
    local_root,
)
from cloudgpu.run.data.files import RemoteFile
from cloudgpu.run.data.peer_transfer import PeerAddress, distribute_to_peers
from cloudgpu.run.progress import Note, report_transfer
from cloudgpu.ssh.transfer.node_tree import is_folder
from cloudgpu.ssh.transfer.transfer import manifest_of


def share_dataset(
    dataset: Data, agents: Sequence[Agent], listed: Sequence[RemoteFile], way: DistributionSettings
) -> int:
    """Copy a dataset to the first node and from there to the other nodes. Return the bytes read from the source."""
    head, *rest = sorted(agents, key=lambda agent: agent.host.node.index)
    local = source_of(dataset.source).kind == "local"
    moved = copy_dataset(dataset, [head], listed, way)
    way.report(Note(f"data {dataset.name}: copying from node {head.host.node.index} to the other nodes", detail=True))

    def source_of_files(agent: Agent) -> Mapping[str, Any]:
        target = _target(dataset, agent)
        return {"folder": target} if local else {"folder": target, "cache": dataset_index_key(dataset, target)}

    def copy_from_head(agent: Agent, source: PeerAddress) -> int:
        return (_fetch_tree if local else _fetch_files)(agent, dataset, listed, way, source)

    return moved + sum(distribute_to_peers([head, *rest], 1, source_of_files, copy_from_head, way.report).values())


def _fetch_files(
    agent: Agent, dataset: Data, listed: Sequence[RemoteFile], way: DistributionSettings, source: PeerAddress
) -> int:
    """Download a dataset from another node. Return 0, because nothing is read from the source."""
    hand = source["hand"]
    files = [replace(file, url=_address(hand, file.relative), etag="" if file.sha256 else file.etag) for file in listed]
    download_files_to(agent, _target(dataset, agent), dataset, files, way, hand)
    return 0


def _fetch_tree(
    agent: Agent, dataset: Data, listed: Sequence[RemoteFile], way: DistributionSettings, source: PeerAddress
) -> int:
    """Download files from another node, then send what is missing, such as symlinks, from this machine.

    The final transfer compares all files and deletes extra files, so the first step may be incomplete.
    """
    root, target = local_root(dataset, way), _target(dataset, agent)
    names = local_names(dataset, listed, way)
    create_user_directory(agent.host, target)
    agent.host.claim_tree(target)
    manifest = [entry for entry in manifest_of(root, names) if entry.link is None and not is_folder(entry)]
    entries = [
        {
            "url": _address(source["hand"], entry.path),
            "path": f"{target}/{entry.path}",
            "size": entry.size,
            # Rejects a different version of this file on the serving node.
            "etag": f"{entry.size}-{entry.mtime_ns}",
            "mtime_ns": entry.mtime_ns,
            "mode": entry.mode,
        }
        for entry in manifest
    ]
    with report_transfer(way.report, f"data {dataset.name}", agent.host.node.index) as on_bytes:
        try:
            for entry_batch, on_done in batches(entries, [entry.size for entry in manifest], on_bytes):
                fetch(agent, {"files": entry_batch, "roots": [target], "hand": source["hand"]}, on_done)
        except RemoteCommandError as err:
            way.report(
                Note(
                    f"data {dataset.name}: sending the remaining files from this machine after an error: {err.message}",
                    agent.host.node.index,
                )
            )
        return agent.host.send_tree(root, names, target, on_bytes)


def _target(dataset: Data, agent: Agent) -> str:
    return f"{agent.root}{dataset.to}"


def _address(hand: Mapping[str, Any], relative: str) -> str:
    return f"{hand['url']}/{quote(relative, errors='surrogateescape')}"
