"""An example backend, whose clusters consist of local processes. docs/explanation/backends.md explains the code.

The nodes are not isolated from each other or from this machine.
"""

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

from local_host import LocalHost
from local_nodes import LocalNodes

from cloudgpu.backends.base import Backend, ClusterOperations, Context, Offers
from cloudgpu.backends.billing.cluster_billing import ClusterBilling, missing_nodes
from cloudgpu.backends.billing.cost_ledger import has_failed, reopen_row
from cloudgpu.backends.billing.costs import spending_of
from cloudgpu.backends.lifecycle import existing_cluster
from cloudgpu.backends.lifecycle.deletion import (
    cancel_unfinished_runs,
    check_identity,
    check_recorded,
    delete_after_failure,
    remove_local_record,
)
from cloudgpu.backends.lifecycle.existing_cluster import hold_lease, hold_lease_to_delete
from cloudgpu.backends.lifecycle.launch_request import Requester, new_record, require_applicable
from cloudgpu.backends.lifecycle.results import DeletionResult, ExtensionResult, ProvisionedCluster
from cloudgpu.errors import ConnectError, StateError
from cloudgpu.hosts.host import HostSeen, HostsFile, HostsView, OwnHost
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.plan.plan import Plan
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.run.progress import Emit, Note
from cloudgpu.ssh.base import Host
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.identifiers import require_cluster_name
from cloudgpu.state.nodes import save_inventory, stored_inventory
from cloudgpu.text import plural

SLOTS = tuple(OwnHost(f"slot{n}", "127.0.0.1", 22, "", 0, gpu="T4", gpus=1, rate_usd=Decimal(0)) for n in range(4))


@dataclass(frozen=True)
class LocalBackend(Backend):
    """Clusters of local processes. `root` contains one directory per node."""

    root: Path
    target = "local"
    description = "local processes"

    @property
    def endpoint(self) -> str:
        return str(self.root)

    @property
    def nodes(self) -> LocalNodes:
        return LocalNodes(self.root)

    def account(self) -> str:
        return socket.gethostname()

    def clusters(self, context: Context) -> ClusterOperations:
        return LocalClusters(context, self.nodes, ClusterBilling(context))

    def offers(self, *, offline: bool) -> Offers:
        return LocalOffers(self.root, offline)

    def connect(self, nodes: Sequence[Node], emit: Emit) -> list[Host]:
        emit(Note(f"connecting to {plural(len(nodes), 'node')}"))
        for node in nodes:
            if not self.nodes.is_running(node.instance_id):
                raise ConnectError(f"node {node.index} ({node.instance_id}) is not running", hint="cloudgpu status")
        return [LocalHost(node, self.root / node.instance_id) for node in nodes]

    def instance_states(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, str]:
        del region
        return {node: "running" if self.nodes.is_running(node) else "terminated" for node in instance_ids}


@dataclass(frozen=True)
class LocalOffers(Offers):
    """Offers the slots of this machine, each with a simulated GPU."""

    root: Path
    offline: bool

    def quote(self, inputs: PlannerInput) -> PlannerInput:
        seen = {} if self.offline else {slot.name: self._look() for slot in SLOTS}
        return replace(inputs, hosts=HostsView(HostsFile(Path("local"), SLOTS), seen))

    def _look(self) -> HostSeen:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            return HostSeen(problem=f"{self.root} cannot be used: {err.strerror}")
        return HostSeen(gpus=1)


@dataclass(frozen=True)
class LocalClusters(ClusterOperations):
    """The operations on clusters, which use the records and the ledger of one context."""

    context: Context
    nodes: LocalNodes
    billing: ClusterBilling

    def create(
        self, plan: Plan, name: str, requester: Requester, *, run_id: str = "", keep_on_failure: bool = False,
        retry_s: int = 0,
    ) -> ProvisionedCluster:  # fmt: skip
        del keep_on_failure, retry_s  # a failed start leaves nothing to keep, and there is always capacity
        require_applicable(plan, name)
        with hold_lease(self.context, name):
            record = self.context.records.cluster(name)
            if record is None or record.state != "up":
                if record is not None:
                    existing_cluster.require_usable(self.context, record)
                    self._end(record)  # an earlier call was interrupted
                record = new_record(self.context.backend, plan, name, requester, run_id, self.context.clock.now())
                return self._start(plan, record)
        return self.reuse(name, plan)

    def _start(self, plan: Plan, record: ClusterRecord) -> ProvisionedCluster:
        context, chosen, place = self.context, plan.candidates[0], socket.gethostname()
        kind, gpu, gpus = chosen.instance_type, chosen.gpu, chosen.gpus_per_node
        placed = replace(record.placement, zone=place, instance_type=kind, gpu=gpu, gpus_per_node=gpus)
        record = replace(record, identity=replace(record.identity, engine=""), placement=placed)
        record = context.records.save_cluster(record, context.clock.now())
        row = spending_of(record, context.clock.now())
        context.ledger.open(row)
        ids = tuple(f"{slot.name}@{record.name}" for slot in SLOTS[: plan.nodes])
        try:
            for instance_id in ids:
                self.nodes.start(record, instance_id)
            context.ledger.launched(row.entry_id, ids, context.clock.now())
        except Exception as err:
            delete_after_failure(self._end, record, err)
            raise
        numbered = [(index, f"127.0.77.{index + 1}", name) for index, name in enumerate(ids)]
        nodes = [Node(n, name, at, 22, "", (), at, kind, place, gpu, gpus, simulated=False) for n, at, name in numbered]
        inventory = Inventory(record.name, tuple(nodes))
        save_inventory(context.home, record.name, inventory)
        running = replace(record, placement=replace(placed, instance_ids=ids)).in_state("up")
        return ProvisionedCluster(context.records.save_cluster(running, context.clock.now()), inventory, made=True)

    def reuse(self, name: str, plan: Plan) -> ProvisionedCluster:
        record = existing_cluster.find_running_cluster(self.context, name)
        existing_cluster.require_matching(plan, record)
        existing_cluster.require_all_nodes_running(self.context, record)
        return ProvisionedCluster(record, stored_inventory(self.context.home, record), made=False)

    def delete(self, name: str, default_region: str) -> DeletionResult:
        with hold_lease_to_delete(self.context, require_cluster_name(name)):
            try:
                record = self.context.records.cluster(name)
            except StateError as err:
                self.context.emit(Note(f"{err.message}; searching for nodes with this name instead"))
                record = None
            result = self._end_unrecorded(name) if record is None else self._end(record, runs_too=True)
        check_recorded(self.context, result, f"cluster {name} is deleted, and its keeper processes have exited")
        return result

    def _end(self, record: ClusterRecord, *, runs_too: bool = False) -> DeletionResult:
        check_identity(record, self.context.backend)
        with suppress(StateError):  # a full disk must not prevent the deletion
            record = self.context.records.save_cluster(record.in_state("ending"), self.context.clock.now())
        ended = self.nodes.find(record.name, token=record.identity.token)
        self.billing.settle(self.billing.rows(record), running=self.nodes.end(ended))
        usd = self.billing.usd(self.billing.rows(record), self.context.clock.now())
        unsaved = cancel_unfinished_runs(self.context, record.name) if runs_too else ()
        unsaved += remove_local_record(self.context, record.name)
        run_id = record.identity.run_id
        return DeletionResult(record.name, known=True, instances=ended, usd=usd, run_id=run_id, unsaved=unsaved)

    def _end_unrecorded(self, name: str) -> DeletionResult:
        ended = self.nodes.find(name, owner=self.context.owner)
        usd = self.billing.settle(self.billing.rows_without_record(name), running=self.nodes.end(ended))
        unsaved = cancel_unfinished_runs(self.context, name) + remove_local_record(self.context, name)
        return DeletionResult(name, known=False, orphans=ended, usd=usd, unsaved=unsaved)

    def extend(
        self, name: str, *, until: datetime | None = None, by: timedelta | None = None, max_usd: Decimal | None = None
    ) -> ExtensionResult:
        with hold_lease(self.context, name):
            record = existing_cluster.require_extendable(self.context, name, max_usd)
            before, expiry = existing_cluster.resolve_expiry(record, until, by)
            later = existing_cluster.extended_record(record, before, expiry)
            existing_cluster.require_within_budget(later)
            later = existing_cluster.record_new_expiry(self.context, later)
            for instance_id in later.placement.instance_ids:
                self.nodes.write_tag(later, instance_id)
            existing_cluster.require_all_nodes_running(self.context, later)
            return existing_cluster.record_confirmation(self.context, later, before)

    def record_costs(self, record: ClusterRecord) -> None:
        row = spending_of(record, record.identity.created_at)
        missing = missing_nodes(record, self.billing.rows(record))
        if missing and not has_failed(self.context.ledger) and reopen_row(self.context.ledger, row):
            self.context.ledger.launched(row.entry_id, missing, record.identity.created_at)
