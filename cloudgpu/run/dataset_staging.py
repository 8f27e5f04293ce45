"""Copy, share or mount datasets on the nodes before any rank starts, and clean up when the run has ended.

A shared dataset is copied to the first node, and from there to the others over the cluster network.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cloudgpu.errors import CloudGpuError, RemoteCommandError
from cloudgpu.node.dataset_mounts import DataMount, build_mount_order
from cloudgpu.recipe.schema import Data
from cloudgpu.recipe.sources import source_of
from cloudgpu.run.agent import Agent, run_on_agents
from cloudgpu.run.dataset_copies import (
    DistributionSettings,
    PeerAddress,
    RemoteFile,
    S3Service,
    batches,
    copy_dataset,
    create_user_directory,
    dataset_index_key,
    distribute_to_peers,
    download_files_to,
    fetch,
    local_names,
    local_root,
)
from cloudgpu.run.job import Job
from cloudgpu.run.progress import Note, Report, report_transfer
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.fanout import run_on_all
from cloudgpu.ssh.transfer.node_tree import is_folder
from cloudgpu.ssh.transfer.send import manifest_of
from cloudgpu.text import plural, size_text


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
    peer = source["hand"]
    files = [replace(file, url=_address(peer, file.relative), etag="" if file.sha256 else file.etag) for file in listed]
    download_files_to(agent, _target(dataset, agent), dataset, files, way, peer)
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


def _address(peer: Mapping[str, Any], relative: str) -> str:
    return f"{peer['url']}/{quote(relative, errors='surrogateescape')}"


def provide_dataset(dataset: Data, job: Job, agents: Sequence[Agent], way: DistributionSettings) -> int:
    """Mount a dataset on every node or copy it there. Return the bytes transferred."""
    if dataset.mode == "mount":
        _mount(dataset, job, agents, way)
        return 0
    listed = way.files(dataset)
    total = sum(file.size for file in listed)
    content = f"{plural(len(listed), 'file')} ({size_text(total)})"
    way.report(Note(f"data {dataset.name}: copying {content} to {dataset.to} on {_where(agents)}", detail=True))
    copied = share_dataset if dataset.share == "head" and len(agents) > 1 else copy_dataset
    moved = copied(dataset, agents, listed, way)
    way.report(Note(f"data {dataset.name}: {size_text(moved)} transferred{_verified(listed)}", detail=True))
    return moved


def release_datasets(job: Job, agents: Sequence[Agent]) -> tuple[str, ...]:
    """Unmount this run's mounted datasets, and delete its copied datasets unless they set `keep`.

    Return one message per node that failed.
    """
    mounted = any(dataset.mode == "mount" for dataset in job.recipe.data)
    removed = [dataset for dataset in job.recipe.data if dataset.mode == "copy" and not dataset.keep]

    def clean_up(agent: Agent) -> None:
        if mounted:
            agent.ask("unmount", {"run": job.run_id})
        for dataset in removed:
            _remove(dataset, agent)

    if not mounted and not removed:
        return ()
    by_index = {agent.host.node.index: agent for agent in agents}
    results = run_on_all([agent.host for agent in agents], lambda host: clean_up(by_index[host.node.index]))
    return tuple(answer.message for answer in results.values() if isinstance(answer, CloudGpuError))


def _remove(dataset: Data, agent: Agent) -> None:
    target = f"{agent.root}{dataset.to}"
    if source_of(dataset.source).kind == "local":
        agent.host.send_tree(Path(), [], target)  # sending no files empties the directory
        agent.host.try_run(RemoteCommand("rmdir", target))
        return
    agent.ask("forget", {"cache": {"name": dataset.name, "source": dataset.source, "to": target}})


def _mount(dataset: Data, job: Job, agents: Sequence[Agent], way: DistributionSettings) -> None:
    source = source_of(dataset.source)
    way.report(Note(f"data {dataset.name}: mounting {dataset.source} at {dataset.to} on {_where(agents)}", detail=True))
    service = way.bucket_service(dataset.source) if source.kind == "s3" else S3Service()

    def mount(agent: Agent) -> None:
        agent.ask("mount", mount_request(dataset, job.run_id, agent, service), _progress_relay(agent, way.report))

    run_on_agents(agents, mount)


def mount_request(dataset: Data, run_id: str, agent: Agent, service: S3Service) -> dict[str, Any]:
    """Return the `mount` request for a dataset."""
    target = f"{agent.root}{dataset.to}"
    data_mount = DataMount(
        name=dataset.name,
        source=source_of(dataset.source),
        to=target,
        region=service.region or agent.host.node.zone[:-1],
        writable=dataset.writable,
        client=dataset.client,
        endpoint=dataset.endpoint or service.endpoint_url,
        options=dataset.options,
        within_s=int(dataset.within),
    )
    mount_order = build_mount_order(data_mount)
    mount = {
        "name": dataset.name,
        "source": dataset.source,
        "target": target,
        "root": agent.root,
        "argv": list(mount_order.argv),
        "program": mount_order.program,
        "package": mount_order.package,
        # Never install packages on self-managed hosts.
        "install": "" if agent.host.node.own else mount_order.install,
        "seconds": data_mount.within_s,
    }
    return {"run": run_id, "mounts": [mount]}


def _verified(listed: Sequence[RemoteFile]) -> str:
    return ", checksums verified" if listed and all(file.sha256 for file in listed) else ""


def _where(agents: Sequence[Agent]) -> str:
    return "every node" if len(agents) != 1 else "the node"


def _progress_relay(agent: Agent, report: Report) -> Callable[[Mapping[str, Any]], None]:
    def relay(line: Mapping[str, Any]) -> None:
        if "progress" in line:
            report(Note(str(line["progress"]), agent.host.node.index, detail=True))

    return relay


@contextmanager
def release_datasets_on_failure(
    job: Job, agents: Sequence[Agent], errors: tuple[type[BaseException], ...] = (CloudGpuError, KeyboardInterrupt)
) -> Iterator[None]:
    """Release the datasets if the block raises one of `errors`, because the run will not reach its normal cleanup."""
    try:
        yield
    except errors:
        release_datasets(job, agents)
        raise
