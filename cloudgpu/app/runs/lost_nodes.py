"""Nodes of a run that do not respond or no longer exist: ask the cloud about them, and save the logs of failed nodes.

Reports say what is lost with the nodes, and how to continue.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cloudgpu.backends.base import Backend, Context
from cloudgpu.backends.lifecycle.node_boot import save_consoles
from cloudgpu.errors import BadRequestError, CloudGpuError, ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import ALIVE_STATES, Inventory, Node
from cloudgpu.rehearsal.layout import ended_instances
from cloudgpu.run.agent import Agent
from cloudgpu.run.agent_messages import SpotNotice, Verdict
from cloudgpu.run.progress import Note
from cloudgpu.run.s3_transfers import NO_SUCH_KEY
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.nodes import MOST_BYTES, MOST_NODES, mention, node_log, save_node_log
from cloudgpu.state.run_records import RunRecord
from cloudgpu.text import command

_LOG_S: Final = 30.0
SPOT = "spot"
_PROBABLY_SPOT = "most likely a spot interruption: AWS needed the capacity"


def save_logs_of_failed_nodes(
    context: Context, err: CloudGpuError, inventory: Inventory, agents: Sequence[Agent], folder: Path
) -> None:
    """Save the logs of the nodes that an error names, and name the files in the error's hint.

    Nodes of the user's own hosts are left out. The bootstrap log is read only from connected nodes.
    """
    failed = [node for node in inventory.nodes if node.index in err.nodes and not node.own][:MOST_NODES]
    connected = {agent.host.node.index: agent for agent in agents}
    saved: list[Path] = []
    record = context.records.last_known(inventory.cluster)
    if record is not None:
        ids = {node.index: node.instance_id for node in failed}
        saved += save_consoles(context, record.placement.region, ids, folder)
    for node in failed:
        if node.index in connected:
            text = bootstrap_log(connected[node.index])
            saved += filter(None, [save_node_log(node_log(folder, node.index, "bootstrap"), text)])
    err.hint = mention(err.hint, saved)


def bootstrap_log(agent: Agent) -> str:
    """Return the end of a node's bootstrap log; empty if the node does not respond."""
    script = f'tail -c {MOST_BYTES} -- "$1/var/lib/cloudgpu/bootstrap.log"'
    try:
        return agent.host.try_run(RemoteCommand("sh", "-c", script, "sh", agent.root), timeout_s=_LOG_S).stdout
    except CloudGpuError:
        return ""


def node_words(cluster: ClusterRecord | None) -> str:
    """Return `spot node` for a node of a spot cluster, otherwise `node`."""
    return "spot node" if is_spot(cluster) else "node"


def is_spot(cluster: ClusterRecord | None) -> bool:
    """Return True if the cluster has spot nodes."""
    return cluster is not None and cluster.placement.market == SPOT


def why_terminated(context: Context, cluster: ClusterRecord | None) -> str:
    """Return why nodes of a cluster were terminated before its expiry, if that is known or likely; else empty."""
    if cluster is not None and cluster.simulated and cluster.ended_with_cloud(ended_instances(context.home)):
        return f"which ended with {context.backend.description} when it was stopped"
    return _PROBABLY_SPOT if is_spot(cluster) else ""


def terminated_node_lines(
    cluster: ClusterRecord | None, instance_ids: Mapping[int, str], connected: Collection[int]
) -> tuple[str, ...]:
    """Return a line for each node, by index, that is not connected."""
    return tuple(
        f"{node_words(cluster)} {index} ({instance_id}) is terminated and its data is lost"
        for index, instance_id in instance_ids.items()
        if index not in connected
    )


class SpotNotices:
    """Shows the spot interruption notice of each node of a run once."""

    def __init__(self, context: Context, record: RunRecord) -> None:
        self._context = context
        self._record = record
        self._announced = set[int]()

    def add(self, notice: SpotNotice) -> None:
        """Process a node's message."""
        if notice.node not in self._announced:
            self._announced.add(notice.node)
            text = describe_notice(notice, self._record, self._context.clock.now())
            self._context.emit(Note(text, notice.node))


def describe_notice(notice: SpotNotice, record: RunRecord, now: datetime) -> str:
    """Return what AWS announced about a spot node, when the node ends, and what happens to the checkpoints."""
    does = {"stop": "stops", "hibernate": "hibernates"}.get(notice.action, "terminates")
    left_s = 0 if notice.at is None else max(0, round((notice.at - now).total_seconds()))
    when = "within two minutes" if notice.at is None else f"at {notice.at:%H:%M:%S} UTC, in {left_s} s"
    to, head = checkpoint_url(record), notice.node == 0
    if to:
        often = ", and looks for them every second until then" if head else ""
        fate = f"node 0 uploads complete checkpoints to {to}{often}"
    elif _section(record, "checkpoint"):
        fate = "its checkpoints are lost, because the recipe does not set checkpoint.to"
    else:
        fate = "the recipe has no checkpoints"
    return f"spot interruption announced: AWS {does} this node {when}, and the run ends as lost; {fate}"


def checkpoint_url(record: RunRecord) -> str:
    """Return the URL to which the run uploads its checkpoints, or an empty string."""
    return str(_section(record, "checkpoint").get("to") or "").replace("{run}", record.run_id)


def has_checkpoint(record: RunRecord, backend: Backend) -> bool | None:
    """Return whether the run's checkpoint URL contains an object; None without a URL, or if it cannot be listed."""
    to = checkpoint_url(record)
    if not to:
        return None
    try:
        return bool(backend.objects(to, expires_s=1))
    except BadRequestError as err:
        return False if err.code == NO_SUCH_KEY else None
    except CloudGpuError:
        return None


def what_is_lost(record: RunRecord, *, uploaded: bool | None) -> str:
    """Return what a run loses with its nodes, and the command that continues the run or starts it again.

    Args:
        record: The run.
        uploaded: Whether a checkpoint was uploaded, or None if that is unknown.
    """
    checkpoint, to = _section(record, "checkpoint"), checkpoint_url(record)
    if to and uploaded is not False:
        # The next run finds checkpoints by itself, unless the URL contains the run ID.
        resume = {"checkpoint.resume": to} if to != checkpoint["to"] else {}
        where = (
            f"checkpoints are in {to}; " if uploaded else f"it is unknown whether {to} contains checkpoints; if so, "
        )
        return f"its outputs are lost; {where}resume with: {_train_again(record, resume)}"
    lost = "its outputs and checkpoints are lost" if checkpoint and not to else "its outputs are lost"
    lost += f"; no checkpoint was uploaded to {to}" if to else ""
    market = {"resources.market": "on-demand"} if _section(record, "resources").get("market") == SPOT else {}
    return f"{lost}; start again with: {_train_again(record, market)}"


def _train_again(record: RunRecord, sets: Mapping[str, str]) -> str:
    """Return the command that starts a run with the same options, except for these fields of the recipe."""
    words, options = list[str](), iter(record.options)
    for word in options:
        if word == "--set":
            assignment = next(options, "")
            words += [] if assignment.partition("=")[0].strip() in sets else [word, assignment]
        else:
            words.append(word)
    changed = (word for name, value in sets.items() for word in ("--set", f"{name}={value}"))
    return command("cloudgpu", "train", record.recipe_path, *words, *changed)


def _section(record: RunRecord, name: str) -> Mapping[str, Any]:
    section = record.resolved.get(name)
    return section if isinstance(section, Mapping) else {}


class UnreachableNodes:
    """Looks up the state of a run's nodes.

    Uses the last known cluster record, because another process may delete the cluster and its record during the run.
    """

    def __init__(self, context: Context, record: RunRecord) -> None:
        self._context = context
        self._record = record
        self._known: ClusterRecord | None = None
        self._reported = False
        self._cluster()

    def __call__(self, node: Node, trouble: ConnectError | RemoteCommandError) -> None:
        """Report a node that does not respond."""
        state = self._states().get(node.instance_id, "")
        if state and state not in ALIVE_STATES:
            what = f"{node_words(self._cluster())} {node.index} ({node.instance_id}) is {state}"
            hint = what_is_lost(self._record, uploaded=has_checkpoint(self._record, self._context.backend))
            raise ConnectError(f"{what}{self._why()}", hint=hint)
        self._context.emit(Note(f"not responding, retrying: {trouble.message}", node.index))

    def all_terminated(self) -> bool:
        """Return True if the cloud confirms that no node of the run is pending or running."""
        states = self._states()
        return bool(states) and not any(state in ALIVE_STATES for state in states.values())

    def with_lost_spot_nodes(self, verdict: Verdict, nodes: Sequence[Node]) -> Verdict:
        """Return the final status. A run that failed while spot nodes were interrupted is lost.

        When a node disappears, the ranks on the other nodes fail, so their exit codes are not the reason.

        Args:
            verdict: The final status as the nodes reported it.
            nodes: The nodes that were running when the run was followed. A node that was terminated before then may
                have been interrupted after the run failed.
        """
        cluster = self._current()
        if verdict.state != "failed" or cluster is None or not is_spot(cluster) or cluster.state == "ending":
            return verdict
        if cluster.lifecycle.expires_at <= self._context.clock.now():
            return verdict
        states = self._states()
        lost = [node for node in nodes if states.get(node.instance_id, "running") not in ALIVE_STATES]
        if not lost:
            return verdict
        names = [f"{node.index} ({node.instance_id})" for node in lost]
        what = f"spot node {names[0]} is" if len(names) == 1 else f"spot nodes {', '.join(names)} are"
        why = why_terminated(self._context, cluster)
        return replace(verdict, state="lost", reason=f"{what} terminated, {why}")

    def _states(self) -> Mapping[str, str]:
        """Return the state of each instance, or an empty mapping if the cloud cannot be queried."""
        cluster = self._cluster()
        try:
            return (
                self._context.backend.instance_states(cluster.placement.region, cluster.placement.instance_ids)
                if cluster
                else {}
            )
        except CloudGpuError as err:
            if err.renewable and not self._reported:
                self._reported = True
                self._context.emit(Note(f"{err.message}; the run continues. To renew the credentials: {err.hint}"))
            return {}

    def _cluster(self) -> ClusterRecord | None:
        self._known = self._current() or self._known
        return self._known

    def _current(self) -> ClusterRecord | None:
        """Return the stored record; None if the cluster is deleted or the record cannot be read."""
        with contextlib.suppress(CloudGpuError):
            return self._context.records.cluster(self._record.cluster)
        return None

    def _why(self) -> str:
        cluster = self._cluster()
        if cluster is None or cluster.lifecycle.expires_at > self._context.clock.now():
            why = why_terminated(self._context, cluster)
            return f", {why}" if why else ""
        return f": the cluster expired at {cluster.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC"
