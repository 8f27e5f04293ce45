"""The simulated AWS services, their state and nodes, and what may cost money. Importing this module loads moto."""

import contextlib
import logging
import os
from datetime import datetime
from typing import Any

from moto.core.base_backend import BackendDict
from moto.ec2.models import ec2_backends
from moto.efs.models import efs_backends
from moto.iam.models import iam_backends
from moto.s3.models import s3_backends
from moto.scheduler.models import scheduler_backends

from cloudgpu.errors import StateError
from cloudgpu.rehearsal.aws_api.ec2 import instance_store
from cloudgpu.rehearsal.aws_api.ec2.instance_lifecycle import NodeKeeper
from cloudgpu.rehearsal.aws_api.ec2.reachability import resend_access
from cloudgpu.rehearsal.aws_api.eventual_consistency import SearchLag
from cloudgpu.rehearsal.aws_api.fsx import region_file_systems
from cloudgpu.rehearsal.aws_api.interfaces import Parts, World
from cloudgpu.rehearsal.aws_api.records import records_of
from cloudgpu.rehearsal.aws_api.scheduler import run_due_schedules
from cloudgpu.rehearsal.aws_api.ssm import SsmSessions
from cloudgpu.rehearsal.aws_api.store import Store
from cloudgpu.rehearsal.layout import Reserve, not_saved
from cloudgpu.rehearsal.nodes.shared_storage import delete_orphaned_folders
from cloudgpu.rehearsal.server.http_message import HttpRequest, HttpResponse
from cloudgpu.rehearsal.server.services import ServiceRouter
from cloudgpu.rehearsal.server.sigv4 import Scope

_RESOURCE_TYPES = (
    "instances", "volumes", "interfaces", "addresses", "nat_gateways", "endpoints", "gateways", "route_tables",
    "groups", "launch_templates", "fleets", "placement_groups", "key_pairs", "vpcs", "subnets", "roles",
    "instance_profiles", "buckets", "schedule_groups", "schedules",
)  # fmt: skip
_INACTIVE = frozenset({"deleted", "failed"})
"""States in which a NAT gateway is not billed and does not forward traffic."""
_CLUSTER_TAG = "cloudgpu:cluster"
_log = logging.getLogger(__name__)


def file_systems() -> list[dict[str, Any]]:
    """Return all EFS and Lustre file systems, including Lustre file systems that are being deleted."""
    rows: list[dict[str, Any]] = []
    for _, region, backend in _iter(ec2_backends):
        rows += [
            {"region": region, "id": system.id, "tags": dict(system.tags)} for system in region_file_systems(backend)
        ]
    for _, region, backend in _iter(efs_backends):
        for name in backend.file_systems_by_id:
            tags = {row["Key"]: row["Value"] for row in backend.list_tags_for_resource(name)}
            rows.append({"region": region, "id": name, "tags": tags})
    return rows


def data_resource_ids() -> frozenset[str]:
    """Return the ids of all resources that may contain data written by nodes."""
    ids = {str(row["id"]) for row in file_systems()}
    ids |= {str(name) for _, _, backend in _iter(ec2_backends) for name in backend.volumes}
    return frozenset(ids | {str(name) for _, _, backend in _iter(s3_backends) for name in backend.buckets})


def _iter(backends: BackendDict[Any]) -> list[Any]:
    return list(backends.iter_backends())


def list_resources() -> dict[str, list[dict[str, Any]]]:
    """Return the resources by type, excluding default networks and inactive resources such as terminated instances."""
    resources: dict[str, list[dict[str, Any]]] = {resource_type: [] for resource_type in _RESOURCE_TYPES}
    for _, _, backend in list(ec2_backends.iter_backends()):
        for resource_type, rows in _of_region(backend).items():
            resources[resource_type] += [{"region": backend.region_name, **row} for row in rows]
    for _, _, backend in _iter(iam_backends):
        # Service-linked roles belong to the account.
        own = [role for role in backend.roles.values() if not role._linked_service]
        resources["roles"] += [_tagged(role.name, role) for role in own]
        resources["instance_profiles"] += [_tagged(row.name, row) for row in backend.instance_profiles.values()]
    for _, _, backend in _iter(scheduler_backends):
        for group in [group for group in backend.schedule_groups.values() if group.name != "default"]:
            # On AWS, schedule groups have tags but schedules do not, so report the group's tags for its schedules.
            row = {"region": backend.region_name, "tags": backend.tagger.get_tag_dict_for_resource(group.arn)}
            resources["schedule_groups"].append({"id": group.name, **row})
            resources["schedules"] += [{"id": f"{group.name}/{name}", **row} for name in group.schedules]
    for _, _, backend in _iter(s3_backends):
        resources["buckets"] += [{"id": name, "region": bucket.region_name} for name, bucket in backend.buckets.items()]
    resources["file_systems"] = file_systems()
    return resources


def _of_region(backend: Any) -> dict[str, list[dict[str, Any]]]:  # noqa: ANN401 - moto is untyped
    records = records_of(backend)
    tags = backend.tags

    def row(physical_id: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
        return {"id": physical_id, "tags": dict(tags.get(physical_id, {})), **more}

    groups = [group for groups in backend.groups.values() for group in groups.values() if group.name != "default"]
    subnets = [subnet for zone in backend.subnets.values() for subnet in zone.values()]
    return {
        "instances": [
            row(i.id, state=i.state, instance_type=i.instance_type)
            for i in backend.all_instances()
            if i.state != "terminated"
        ],
        "volumes": [row(name) for name in backend.volumes],
        "interfaces": [row(name) for name in backend.enis],
        "addresses": [row(address.allocation_id) for address in backend.addresses],
        "nat_gateways": [row(name) for name, gateway in backend.nat_gateways.items() if gateway.state not in _INACTIVE],
        "endpoints": [row(name) for name, point in backend.vpc_end_points.items() if point.state != "deleted"],
        "gateways": [row(name) for name in backend.internet_gateways],
        # A VPC's main route table is created and deleted with the VPC.
        "route_tables": [row(name) for name, table in backend.route_tables.items() if not table.main_association_id],
        "groups": [row(group.id, name=group.name) for group in groups],
        "launch_templates": [row(name, name=item.name) for name, item in backend.launch_templates.items()],
        "fleets": [row(name) for name, fleet in records.fleets.items() if not fleet.deleted],
        "placement_groups": [row(group.id, name=group.name) for group in records.placement_groups.values()],
        "key_pairs": [row(pair.id, name=pair.key_name) for pair in backend.key_pairs.values()],
        "vpcs": [row(vpc.id) for vpc in backend.vpcs.values() if not vpc.is_default],
        "subnets": [row(subnet.id) for subnet in subnets if str(subnet.default_for_az).lower() != "true"],
    }


def _tagged(name: str, item: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return an inventory entry with a name and tags.

    Moto stores the tags of roles and profiles as a list or a mapping, depending on the call that set them.
    """
    tags = getattr(item, "tags", None) or {}
    rows = tags.values() if isinstance(tags, dict) else tags
    return {"id": name, "tags": {row["Key"]: row["Value"] for row in rows}}


class SimulatedCloud:
    """The simulated cloud that serves the endpoint's requests."""

    def __init__(self, parts: Parts) -> None:
        self._lock = parts.lock
        self._time = parts.time
        self._shared = parts.files.nodes
        self._reserve = Reserve(parts.files.reserve)
        self._store = Store(parts.files.state, parts.files.objects, self._reserve)
        self._host = parts.host
        self._keeper = NodeKeeper(parts)
        self._search_lag = SearchLag(parts.clock)
        world = World(**vars(parts), keeper=self._keeper)
        self._router = ServiceRouter(world, SsmSessions(parts.files.nodes))

    def restore(self) -> None:
        """Load the state and reconcile nodes and instances."""
        self._store.load()
        with contextlib.suppress(StateError):  # `admit` tries again
            self._reserve.hold()
        if any(True for _ in self._instances()):
            self._keeper.reconcile()

    def execute(self, request: HttpRequest, scope: Scope, *, lag_s: float = 0.0) -> HttpResponse:
        """Execute a verified request. Tag searches find a resource only `lag_s` seconds after it was first tagged."""
        with self._search_lag.hide_recent_tags(request.body, lag_s):
            response = self._router.route(request, scope)
        self._search_lag.note()
        return response

    def admit(self, *, frees: bool) -> None:
        """Save pending node changes, and reject a call if the disk is full.

        Calls that free resources may use the disk reserve.
        """
        try:
            self._save_nodes()
            if not frees:
                self._reserve.hold()
        except StateError as err:
            raise not_saved(err) from err

    def save(self, *, mutated: bool) -> None:
        """Save the effect of a call. If saving fails, undo the call: a restart must not lose state that clients saw.

        If the call changed nothing, a failure is only logged.
        """
        try:
            self._store.save(mutated=mutated)
        except StateError as err:
            if mutated:
                self._restore_saved_state()
                raise not_saved(err) from err
            _log.warning("cannot save the state of a newly used region; the next call tries again: %s", err.message)

    def _restore_saved_state(self) -> None:
        """Restore the last saved state, so that background work queued by the failed call has no effect."""
        try:
            self._store.load()
        except Exception:  # noqa: BLE001 - any failure is fatal here
            # The state in memory is inconsistent and must not be saved. The next server reports the problem.
            _log.critical("cannot reload the saved state: exiting as if killed", exc_info=True)
            os._exit(1)
        for backend in instance_store.backends():
            resend_access(self._host, backend, records_of(backend))

    def regions(self) -> set[str]:
        """Return the names of the regions that contain resources."""
        return {str(row["region"]) for rows in list_resources().values() for row in rows if row.get("region")}

    def list_resources(self) -> dict[str, list[dict[str, Any]]]:
        """Return the resources that may cost money or be left over, by type."""
        return list_resources()

    def nodes(self) -> list[dict[str, Any]]:
        """Return every instance that is not terminated, with its node's address."""
        with self._lock:
            return [_shown(instance) for instance in self._instances() if instance.state != "terminated"]

    def housekeep(self) -> None:
        """Delete data of deleted storage, remove old terminated instances, run due schedules, and save node changes."""
        with self._lock:
            delete_orphaned_folders(self._shared, data_resource_ids())
        self._keeper.remove_old_instances()
        self.run_due_schedules()

    def run_due_schedules(self) -> None:
        """Run the schedules that are due and save the result."""
        with self._lock:
            if run_due_schedules(self._time.now(), self._keeper):
                self._keeper.mark_changed()
            self._save_nodes()

    def end_nodes(self, at: datetime) -> list[str]:
        """Stop background work, mark every instance as terminated, and return the IDs of those that had not ended."""
        self._keeper.close()
        return self._keeper.terminate_all(at)

    def close(self) -> None:
        """Stop background work and save pending changes."""
        self._keeper.close()
        self._save_nodes()

    def _save_nodes(self) -> None:
        """Save changes that nodes or schedules made. If this fails, the next call tries again."""
        with self._lock:
            if self._keeper.changed():
                try:
                    self._store.save(mutated=True)
                except StateError:
                    self._keeper.mark_changed()
                    raise

    def _instances(self) -> list[Any]:
        registered: list[Any] = list(ec2_backends.iter_backends())
        return [instance for _, _, backend in registered for instance in backend.all_instances()]


def _shown(instance: Any) -> dict[str, Any]:  # noqa: ANN401 - moto is untyped
    backend = instance.ec2_backend
    record = records_of(backend).nodes[instance.id]
    return {
        "instance_id": instance.id,
        "instance_type": str(instance.instance_type),
        "region": str(backend.region_name),
        "zone": str(instance.placement.zone),
        "state": str(instance.state),
        "address": record.address,
        "port": record.port,
        "user": record.user,
        "host_key": record.host_key,
        "cluster": backend.tags.get(instance.id, {}).get(_CLUSTER_TAG, ""),
    }
