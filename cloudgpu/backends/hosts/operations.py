"""The operations on clusters of self-managed hosts.

To create a cluster, write the ledger rows, then lease either all hosts of a set or none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from cloudgpu import bounds
from cloudgpu.backends.base import ClusterOperations, Context
from cloudgpu.backends.hosts import billing
from cloudgpu.backends.hosts.backend import HostsBackend, HostsContext, duplicate_machines
from cloudgpu.backends.hosts.billing import restore_rows
from cloudgpu.backends.hosts.delete import HostTeardown
from cloudgpu.backends.hosts.nodes import (
    ExtendedResponse,
    LeasesResponse,
    TakenResponse,
    cluster_directory,
    cluster_member,
)
from cloudgpu.backends.lifecycle.deletion import delete_after_failure
from cloudgpu.backends.lifecycle.existing_cluster import (
    extended_record,
    find_running_cluster,
    hold_lease,
    record_confirmation,
    record_new_expiry,
    require_all_nodes_running,
    require_extendable,
    require_matching,
    require_usable,
    require_within_budget,
    resolve_expiry,
)
from cloudgpu.backends.lifecycle.launch_request import Requester, new_record, require_applicable
from cloudgpu.backends.lifecycle.results import DeletionResult, ExtensionResult, ProvisionedCluster
from cloudgpu.decoding import describe_error
from cloudgpu.errors import (
    CapacityError,
    CloudGpuError,
    ConnectError,
    NoCapacityError,
    RemoteCommandError,
    TeardownError,
    UsageError,
)
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.plan.host_sets import HostSet
from cloudgpu.plan.plan import Plan
from cloudgpu.run.agent import (
    Agent,
    AgentReplyError,
    ask_once,
    count_field,
    find_login_home,
    install_agent,
    require_shape,
)
from cloudgpu.run.progress import Note
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.nodes import save_inventory, stored_inventory
from cloudgpu.text import plural

_RETRY_DELAY_S = 15.0
_MAX_CLOCK_SKEW_S = 120.0
_TAKEN = frozenset({"leased", "in-use", "no-gpu", "busy"})


class HostProvisioning:
    """Creates clusters on self-managed hosts, for one inventory and one state home."""

    def __init__(self, context: HostsContext, requester: Requester) -> None:
        self._context = context
        self._requester = requester
        self._teardown = HostTeardown(context)

    def create(
        self, plan: Plan, name: str, *, run_id: str = "", keep_on_failure: bool = False, retry_s: int = 0
    ) -> ProvisionedCluster:
        """Lease the hosts. If the cluster already exists, verify it and make no changes."""
        del keep_on_failure  # hosts exist independently of the cluster, so there is nothing to keep
        require_applicable(plan, name)
        with hold_lease(self._context, name):
            record = self._context.records.cluster(name)
            if record is None or record.state != "up":
                if record is not None:
                    require_usable(self._context, record)
                    self._teardown.end(record)  # an interrupted `up` left the record
                return self._create_with_retries(plan, name, run_id, retry_s)
        return reuse_cluster(self._context, name, plan)

    def _create_with_retries(self, plan: Plan, name: str, run_id: str, retry_s: int) -> ProvisionedCluster:
        clock = self._context.clock
        deadline = clock.monotonic() + retry_s
        while True:
            try:
                return self._try_candidates(plan, name, run_id)
            except CapacityError as err:
                hopeless = isinstance(err, NoCapacityError) and not err.passing
                if hopeless or clock.monotonic() >= deadline:
                    raise
                self._context.emit(Note(f"{err.message}; retrying in {_RETRY_DELAY_S:.0f} s"))
                clock.sleep(_RETRY_DELAY_S)

    def _try_candidates(self, plan: Plan, name: str, run_id: str) -> ProvisionedCluster:
        """Create the cluster on the first set of hosts that can be leased. Each set is tried once."""
        failures: list[tuple[HostSet, CloudGpuError]] = []
        for candidate in plan.candidates:
            assert isinstance(candidate, HostSet)  # noqa: S101 - plans for hosts contain only host sets
            record = self._new(plan, name, run_id, candidate)
            try:
                return self._attempt(
                    record, candidate, [f"{host_set.label}: {why.message}" for host_set, why in failures]
                )
            except TeardownError:
                raise
            except (CapacityError, ConnectError) as err:
                failures.append((candidate, err))
                self._context.emit(Note(f"{candidate.label}: {err.message}"))
        if len(failures) == 1:
            raise failures[0][1]
        tried = [f"{host_set.label}: {why.message}" for host_set, why in failures]
        passing = any(isinstance(why, CapacityError) for _, why in failures)
        raise NoCapacityError(
            f"no set of hosts could be leased for cluster {name}",
            tried=tried,
            passing=passing,
            hint="run `cloudgpu hosts check` to see the state of the hosts",
        )

    def _new(self, plan: Plan, name: str, run_id: str, chosen: HostSet) -> ClusterRecord:
        by_name = self._context.hosts.file().by_name
        record = new_record(self._context.backend, plan, name, self._requester, run_id, self._context.clock.now())
        placement = replace(
            record.placement,
            zone=chosen.label,
            instance_type=chosen.instance_type,
            node_hourly_usd=format(chosen.node_hourly_usd, "f"),
            beside=tuple(item.as_json() for item in chosen.beside),
            gpu=chosen.gpu,
            gpus_per_node=chosen.gpus_per_node,
            config={"keep_cache": " ".join(host for host in chosen.hosts if by_name[host].keep_cache)},
            instance_ids=tuple(f"{host}@{name}" for host in chosen.hosts),
        )
        return replace(record, identity=replace(record.identity, engine=""), placement=placement)

    def _attempt(self, record: ClusterRecord, chosen: HostSet, tried: list[str]) -> ProvisionedCluster:
        """Create the cluster on one set of hosts.

        The record, inventory and ledger rows are written before the first lease request, so that `down` finds every
        lease.
        """
        context = self._context
        by_name = context.hosts.file().by_name
        hosts = [by_name[name] for name in chosen.hosts]
        instance_type = chosen.instance_type
        nodes = [
            cluster_member(node, record.name, record.identity.token, instance_type, chosen.gpus_per_node)
            for node in context.hosts.nodes(hosts)
        ]
        record = context.records.save_cluster(record, context.clock.now())
        self._write(record, nodes)
        billing.open_rows(context, record, chosen)
        context.emit(Note(f"leasing {chosen.gpus_per_node} x {chosen.gpu} on {chosen.label}"))
        nodes = self._lease_all(record, nodes)
        self._write(record, nodes)
        billing.start_billing(context, record)
        record = context.records.save_cluster(record.in_state("up"), context.clock.now())
        return ProvisionedCluster(record, Inventory(record.name, tuple(nodes)), made=True, tried=tuple(tried))

    def _lease_all(self, record: ClusterRecord, nodes: list[Node]) -> list[Node]:
        """Lease the nodes and return them with their leased GPUs. If one lease fails, release all nodes."""
        with self._context.hosts.connected(nodes) as outcomes:
            try:
                hosts = all_or_raise(outcomes).values()
                _require_separate_machines(all_or_raise(run_on_all(hosts, self._require_clock)), nodes)
            except CloudGpuError:
                self._teardown.forget(record)  # nothing has been created on any host
                raise
            try:
                agents = all_or_raise(run_on_all(hosts, install_agent))
                responses = all_or_raise(run_on_all(hosts, lambda host: self._take(record, agents[host.node.index])))
            except Exception as err:
                delete_after_failure(self._teardown.end, record, err)
                if isinstance(err, AgentReplyError) and err.code in _TAKEN:
                    raise CapacityError(err.message, code=err.code, hint=err.hint) from err
                raise
        return [_with_devices(node, responses[node.index]) for node in nodes]

    def _require_clock(self, host: Host) -> dict[str, Any]:
        """Return a host's leases. Reject a host whose clock is wrong: its lease would expire at the wrong time."""
        leases = ask_once(host, "lease", {"action": "show"}, LeasesResponse)
        ahead_s = count_field(leases, "epoch_s") - self._context.clock.now().timestamp()
        if abs(ahead_s) > _MAX_CLOCK_SKEW_S:
            minutes = round(abs(ahead_s) / 60)
            direction = "ahead of" if ahead_s > 0 else "behind"
            raise RemoteCommandError(
                f"{host.node.zone}: its clock is {plural(minutes, 'minute')} {direction} this machine's, "
                "so a lease on this host would expire at the wrong time",
                hint="run `timedatectl` on both machines to see which clock is not synchronized, and set that clock",
            )
        return leases

    def _take(self, record: ClusterRecord, agent: Agent) -> dict[str, Any]:
        request = {
            "action": "take",
            "token": record.identity.token,
            "cluster": record.name,
            "owner": record.identity.owner,
            "gpus": agent.host.node.gpus,
            "expires_epoch_s": int(record.lifecycle.expires_at.timestamp()),
            "home": agent.home,
        }
        return require_shape(agent.host.node, "lease", agent.ask("lease", request), TakenResponse)

    def _write(self, record: ClusterRecord, nodes: list[Node]) -> None:
        save_inventory(self._context.home, record.name, Inventory(record.name, tuple(nodes)))


def _require_separate_machines(responses: Mapping[int, Mapping[str, Any]], nodes: list[Node]) -> None:
    """Reject hosts that are the same machine, whose GPUs would be leased twice."""
    names = {node.index: node.zone for node in nodes}
    for name, other in duplicate_machines({names[index]: response for index, response in responses.items()}).items():
        hint = f"remove {name} or {other} from the inventory"
        raise UsageError(f"{other} and {name} in the inventory are the same machine", hint=hint)


def _with_devices(node: Node, response: Mapping[str, Any]) -> Node:
    """Return the node with its leased GPUs, or with an empty list if all of the host's GPUs are leased."""
    try:
        devices = tuple(bounds.checked_count(device) for device in response["devices"])
    except (TypeError, ValueError) as err:
        message = f"{node.zone}: its agent reported invalid GPUs: {describe_error(err)}"
        raise RemoteCommandError(message, hint="run the command again") from None
    return replace(node, devices=() if len(devices) == count_field(response, "of") else devices)


def reuse_cluster(context: HostsContext, name: str, plan: Plan) -> ProvisionedCluster:
    """Return a recorded cluster that matches the plan, after checking its leases."""
    record = find_running_cluster(context, name)
    require_matching(plan, record)
    require_all_nodes_running(context, record)
    return ProvisionedCluster(record, stored_inventory(context.home, record), made=False)


@dataclass(frozen=True)
class HostClusters(ClusterOperations):
    """Creates, verifies, extends and deletes clusters on the hosts of one inventory."""

    context: HostsContext

    def create(
        self,
        plan: Plan,
        name: str,
        requester: Requester,
        *,
        run_id: str = "",
        keep_on_failure: bool = False,
        retry_s: int = 0,
    ) -> ProvisionedCluster:
        """Lease the hosts. If the cluster already exists, verify that it matches the plan and make no changes."""
        provisioning = HostProvisioning(self.context, requester)
        return provisioning.create(plan, name, run_id=run_id, keep_on_failure=keep_on_failure, retry_s=retry_s)

    def reuse(self, name: str, plan: Plan) -> ProvisionedCluster:
        """Return a running cluster after verifying its leases."""
        return reuse_cluster(self.context, name, plan)

    def delete(self, name: str, default_region: str) -> DeletionResult:
        """Release the hosts of a cluster and verify that nothing is left on them."""
        return HostTeardown(self.context).down(name, default_region)

    def extend(
        self, name: str, *, until: datetime | None = None, by: timedelta | None = None, max_usd: Decimal | None = None
    ) -> ExtensionResult:
        """Extend the leases on every host to a given time or by a duration. `max_usd` replaces the cluster's budget."""
        with hold_lease(self.context, name):
            record = require_extendable(self.context, name, max_usd)
            restore_rows(self.context, record, stored_inventory(self.context.home, record).nodes)
            before, requested = resolve_expiry(record, until, by)
            later = extended_record(record, before, requested)
            require_within_budget(later)
            later = record_new_expiry(self.context, later)
            self._renew(later)
            return record_confirmation(self.context, later, before)

    def record_costs(self, record: ClusterRecord) -> None:
        """Do nothing, because `up`, `extend` and `down` open, restore and close the rows of hosts."""

    def _renew(self, record: ClusterRecord) -> None:
        def renew(host: Host) -> None:
            home = cluster_directory(host.node, find_login_home(host))
            until = int(record.lifecycle.expires_at.timestamp())
            request = {"action": "extend", "token": record.identity.token, "home": home, "expires_epoch_s": until}
            ask_once(host, "lease", request, ExtendedResponse)

        with self.context.hosts.connected(stored_inventory(self.context.home, record).nodes) as outcomes:
            all_or_raise(run_on_all(all_or_raise(outcomes).values(), renew))


def host_clusters(context: Context, hosts: HostsBackend) -> HostClusters:
    """Return the operations on clusters, which use the records and the ledger of `context`."""
    shared = {field.name: getattr(context, field.name) for field in fields(Context)}
    return HostClusters(HostsContext(**shared, hosts=hosts))
