"""Delete a cluster on self-managed hosts: stop its processes, remove its files, release the GPUs, and confirm it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from cloudgpu.backends.billing import ClusterBilling
from cloudgpu.backends.deletion import Ended, check_identity, check_recorded
from cloudgpu.backends.deletion_records import end_runs, forget
from cloudgpu.backends.hosts import billing
from cloudgpu.backends.hosts.agent_messages import LeaveResponse
from cloudgpu.backends.hosts.context import HostsContext
from cloudgpu.backends.hosts.nodes import host_of, member, own_directory
from cloudgpu.decoding import decoded, described
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import CloudGpuError, StateError, TeardownError
from cloudgpu.launch.inventory import Node
from cloudgpu.run.agent import ask_once, home_of
from cloudgpu.run.progress import Note
from cloudgpu.ssh.base import Host
from cloudgpu.state.cluster_and_run_records import ClusterRecord
from cloudgpu.state.identifiers import checked_cluster
from cloudgpu.state.inventories import stored_inventory
from cloudgpu.text import command


@dataclass(frozen=True)
class _Left:
    """Hosts that confirmed their release, and why the others did not."""

    gone: tuple[str, ...]
    left: tuple[str, ...]


class HostTeardown:
    """Releases hosts, for one inventory and one home."""

    def __init__(self, context: HostsContext) -> None:
        self._context = context
        self._billing = ClusterBilling(context)

    def down(self, name: str, default_region: str) -> Ended:
        """End a cluster; nothing to end is success.

        Raises:
            TeardownError: A host could not be asked, or something is left on it.
            BusyError: Another process is at this cluster.
            UsageError: Nothing can be called so, or without a record the inventory is needed and cannot be read.
        """
        del default_region
        path = self._context.home.cluster(checked_cluster(name)).root / "lease"
        with ClusterLease(path, self._context.clock, self._context.owner).hold(tidy=True, required=False) as lease:
            if lease.problem:
                self._context.emit(Note(f"{lease.problem}; deleting cluster {name} anyway"))
            record = self._recorded(name)
            ended = self._end_unrecorded(name) if record is None else self.end(record, runs_too=True)
        check_recorded(self._context, ended, f"cluster {name} is gone, confirmed by its hosts")
        return ended

    def end(self, record: ClusterRecord, *, runs_too: bool = False) -> Ended:
        """End a recorded cluster; the caller holds its lease.

        Raises:
            TeardownError: A host could not be asked, or something is left on it.
        """
        check_identity(record, self._context.cloud)
        with suppress(StateError):  # a full disk is no reason to keep the hosts
            record = self._context.records.save_cluster(replace(record, state="ending"), self._context.clock.now())
        keep = record.config.get("keep_cache", "").split()
        nodes = self._nodes(record)

        def leave(host: Host) -> dict[str, Any]:
            home = own_directory(host.node, home_of(host))
            request = {"token": record.token, "home": home, "keep_cache": host.node.zone in keep}
            return ask_once(host, "leave", request, LeaveResponse)

        found = self._left(nodes, leave)
        billing.restored(self._context, record, nodes)
        billing.closed(self._context, record, found.gone)
        if found.left:
            message = f"cluster {record.name} is not gone: {'; '.join(found.left)}"
            until = f"its leases lapse by themselves at {record.expires_at:%Y-%m-%d %H:%M} UTC"
            hint = f"`{command('cloudgpu', 'down', record.name)}` again when they answer; {until}"
            raise TeardownError(message, left=found.left, hint=hint)
        usd = self._billing.usd(self._billing.rows(record), self._context.clock.now())
        unsaved = end_runs(self._context, record.name) if runs_too else ()
        return Ended(
            record.name,
            known=True,
            instances=found.gone,
            usd=usd,
            run_id=record.run_id,
            own=True,
            unsaved=(*unsaved, *forget(self._context, record.name)),
        )

    def forget(self, record: ClusterRecord) -> None:
        """Close the ledger rows of a cluster that no host holds anything of."""
        billing.closed(self._context, record, [node.zone for node in self._nodes(record)])
        forget(self._context, record.name)

    def _recorded(self, name: str) -> ClusterRecord | None:
        try:
            return self._context.records.cluster(name)
        except StateError as err:
            self._context.emit(Note(f"{err.message}; asking the hosts of the inventory"))
            return None

    def _nodes(self, record: ClusterRecord) -> tuple[Node, ...]:
        """Return the nodes as last written, or else as the inventory has their hosts now.

        Raises:
            TeardownError: Neither names a host, so it cannot be asked.
        """
        if self._context.home.cluster(record.name).inventory.exists():
            return stored_inventory(self._context.home, record).nodes
        known = self._context.cloud.file().by_name
        names = [host_of(instance_id) for instance_id in record.instance_ids]
        unknown = [f"{name} could not be asked: it is not in the inventory" for name in names if name not in known]
        if unknown:
            message = f"whether cluster {record.name} is gone is not known: {'; '.join(unknown)}"
            again = f"`{command('cloudgpu', 'down', record.name)}` with an inventory that names them"
            raise TeardownError(message, left=unknown, hint=again)
        nodes = self._context.cloud.nodes([known[name] for name in names])
        kind, gpus = record.instance_type, record.gpus_per_node
        return tuple(member(node, record.name, record.token, kind, gpus) for node in nodes)

    def _end_unrecorded(self, name: str) -> Ended:
        """Ask every host of the inventory for what carries this name and is the caller's."""
        request = {"cluster": name, "owner": self._context.owner}
        answers: dict[str, Mapping[str, Any]] = {}

        def leave(host: Host) -> dict[str, Any]:
            answers[host.node.zone] = answer = ask_once(host, "leave", request, LeaveResponse)
            return answer

        found = self._left(self._context.cloud.nodes(self._context.cloud.file().hosts), leave)
        if found.left:
            message = f"whether cluster {name} is gone is not known: {'; '.join(found.left)}"
            raise TeardownError(
                message, left=found.left, hint=f"`{command('cloudgpu', 'down', name)}` again when they answer"
            )
        strays = tuple(host for host in found.gone if answers[host]["clusters"])
        usd = self._billing.settle(self._billing.rows_without_record(name), running=bool(strays))
        unsaved = (*end_runs(self._context, name), *forget(self._context, name))
        return Ended(name, known=False, strays=strays, usd=usd, own=True, unsaved=unsaved)

    def _left(self, nodes: Sequence[Node], leave: Callable[[Host], dict[str, Any]]) -> _Left:
        """Ask all of them at once; one that cannot be asked is never taken for gone."""
        gone, left = [], []
        answers = self._context.cloud.told(nodes, leave)
        for node in nodes:
            answer = answers[node.index]
            if isinstance(answer, CloudGpuError):
                left.append(f"{node.zone} could not be asked: {answer.message}")
                continue
            try:
                still = decoded(LeaveResponse, answer).left
            except ValueError as err:
                left.append(f"{node.zone} sent a malformed answer: {described(err)}")
                continue
            if still:
                left.append(f"{node.zone} still has {', '.join(still)}")
            else:
                gone.append(node.zone)
        return _Left(tuple(gone), tuple(left))
