"""Manage a cluster's storage: find or create it before the launch, attach it, and delete it after the nodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cloudgpu.backends.aws.account import CloudContext
from cloudgpu.backends.aws.storage import retained_storage
from cloudgpu.backends.aws.storage_manager import StorageManager
from cloudgpu.backends.storage import NO_STORAGE, MountableStorage, RetainedResource, StorageOutcome, StorageRequest
from cloudgpu.cloud import TaggedStorage
from cloudgpu.engine.config import list_setting
from cloudgpu.errors import CloudGpuError, StateError, TeardownError, UsageError, decisive_cause
from cloudgpu.node.boot_mounts import Mount, parse_kind
from cloudgpu.plan.network_access import GATEWAYS, NetworkRequest
from cloudgpu.plan.plan import Candidate
from cloudgpu.plan.subnets import choose_mount_subnets, mount_need
from cloudgpu.recipe.schema import Make, Recipe, Storage
from cloudgpu.recipe.sources import FILE_SYSTEMS, ZONAL
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.storage_records import AttachedStorage, unique_name


@dataclass(frozen=True)
class ClusterStorage:
    """Manages the storage of clusters. The caller holds the cluster's lease.

    `ends` of a recorded row is its deletion mark: `delete_marked` deletes the storage together with the cluster. The
    mark is set for disposable storage. Storage that outlives clusters has it only if this cluster creates it, and only
    until the cluster is running (`clear_deletion_marks`), because it contains no data before.
    """

    context: CloudContext

    def provide(
        self,
        recipe: Recipe,
        record: ClusterRecord,
        candidate: Candidate,
        program_settings: Mapping[str, str],
        planned: Mapping[str, str] | None = None,
    ) -> tuple[ClusterRecord, MountableStorage]:
        """Find or create the recipe's storage in the candidate's location. Return the updated record and the mounts.

        New storage is recorded before it is created. Unused storage of an earlier candidate in another location is
        deleted. `program_settings` are as `program_settings_for` returns them; `planned` contains the subnet that the
        plan chose for each zone of the region.
        """
        record = self._delete_elsewhere(record, candidate)
        if not recipe.storage:
            return record, NO_STORAGE
        recorded = {row.name for row in record.placement.storage}
        storage_in_region = self._stored_in(candidate.region)
        rows = tuple(_row(storage, record, candidate, storage_in_region) for storage in recipe.storage)
        record = self.context.records.save_cluster(_with_storage(record, rows), self.context.clock.now())
        _refuse_own_vpc(rows, candidate, program_settings)
        network = _NewNetwork(candidate, program_settings, {**(planned or {}), **_own_subnet(candidate)})
        created = self._create_missing(recipe, record, network, storage_in_region)
        if created:
            storage_in_region = self._stored_in(candidate.region)
        # Another command may have created the storage since the search. Its data must outlive a failure of this one.
        foreign = {name for name, made in created.items() if not made and name not in recorded}
        rows = tuple(replace(row, ends=row.ends and not (row.shared and row.name in foreign)) for row in rows)
        found = [_find_existing(row, candidate, storage_in_region) for row in rows]
        pairs = zip(rows, found, strict=True)
        rows = tuple(replace(row, id=stored.data.id if stored.data else "") for row, stored in pairs)
        record = self.context.records.save_cluster(_with_storage(record, rows), self.context.clock.now())
        mounts = tuple(
            _mount(storage, stored, candidate.zone) for storage, stored in zip(recipe.storage, found, strict=True)
        )
        groups = dict.fromkeys(stored.security_group_id for stored in found if stored.security_group_id)
        return record, MountableStorage(mounts, tuple(groups))

    def attach(self, record: ClusterRecord, instance_ids: Sequence[str]) -> None:
        """Attach the cluster's EBS volumes to its node, which waits for the volumes while booting."""
        for number, row in enumerate(row for row in record.placement.storage if row.kind == "ebs"):
            self.context.emit(Note(f"attaching storage {row.name} to {instance_ids[0]}"))
            self.context.cloud.storage.attach(row.region, row.id, instance_ids[0], number)

    def delete_marked(self, record: ClusterRecord, region: str) -> StorageOutcome:
        """Delete the cluster's marked storage in a region. Return the deleted and the retained storage.

        The nodes must be terminated first. Marked storage that outlives clusters is retained if another cluster mounts
        it or a bucket contains data.
        """
        rows = [row for row in record.placement.storage if row.region == region]
        retained = [row for row in rows if not row.ends or (row.shared and self._is_used(record, row))]
        deleted = [(row.name, row.region) for row in rows if row not in retained]
        _all_or_raise(deleted, lambda name, where: self._delete(record, name, where))
        kept = self._kept(record, region, retained) if retained else []
        return StorageOutcome(tuple(name for name, _ in deleted), tuple(kept))

    def _is_used(self, record: ClusterRecord, row: AttachedStorage) -> bool:
        """Return True if another recorded cluster mounts the storage, or if it is a bucket that contains data.

        Other storage in use is recognized by the instances that use it when it is deleted.
        """
        others = [other for other in self.context.records.clusters() if other.name != record.name]
        mounted = [other.name for other in others if (row.name, row.region) in _places(other)]
        stored = self._stored_in(row.region).get(row.name) if row.kind == "s3" and not mounted else None
        has_data = stored is not None and stored.data is not None and stored.data.size_gib != 0
        if mounted or has_data:
            why = f"cluster {mounted[0]} uses it" if mounted else "it contains data"
            self.context.emit(Note(f"storage {row.name} is not deleted: {why}"))
        return bool(mounted) or has_data

    def _kept(self, record: ClusterRecord, region: str, rows: Sequence[AttachedStorage]) -> list[RetainedResource]:
        """Return storage that is retained in a region, with an unknown cost if the region cannot be queried."""
        try:
            storage_in_region = self._stored_in(region)
        except CloudGpuError as err:
            self.context.emit(Note(f"{err.message}; the cost of the storage in {region} is unknown"))
            return [_unknown_storage(row, simulated=record.simulated) for row in rows]
        found = [storage_in_region[row.name] for row in rows if row.name in storage_in_region]
        return [retained_storage(stored, simulated=record.simulated) for stored in found]

    def delete_unrecorded(self, cluster: str, regions: Sequence[str]) -> StorageOutcome:
        """Delete the disposable storage created for a cluster with this name, except storage of other owners."""
        deleted: list[TaggedStorage] = []

        def end_in(_: str, region: str) -> None:
            found = self.context.cloud.storage.found(region)
            own = [
                stored for stored in found if stored.made_for == cluster and stored.disposable and self._is_own(stored)
            ]
            deleted.extend(own)
            pairs = [(stored.name, stored.region) for stored in own]
            _all_or_raise(pairs, lambda name, where: self._manager("").delete(name, where, delete_data=True))

        _all_or_raise([("", region) for region in regions], end_in)
        return StorageOutcome(tuple(stored.name for stored in deleted))

    def _is_own(self, stored: TaggedStorage) -> bool:
        return stored.tag("cloudgpu:owner") in ("", self.context.owner)

    def _delete_elsewhere(self, record: ClusterRecord, candidate: Candidate) -> ClusterRecord:
        """Delete unused storage that was created for an earlier candidate in another zone or region."""
        elsewhere = [row for row in record.placement.storage if row.ends and not _is_near(row, candidate)]
        for row in elsewhere:
            if row.shared and self._is_used(record, row):
                continue
            self.context.emit(
                Note(f"deleting unused storage {row.name} in {row.zone or row.region}; the nodes will run elsewhere")
            )
            self._delete(record, row.name, row.region)
        return _with_storage(record, [row for row in record.placement.storage if row not in elsewhere])

    def _create_missing(
        self,
        recipe: Recipe,
        record: ClusterRecord,
        network: "_NewNetwork",
        storage_in_region: Mapping[str, TaggedStorage],
    ) -> dict[str, bool]:
        """Create the missing storage. Return its names, and whether this call created it or found that it exists."""
        created = {}
        for storage, row in zip(recipe.storage, record.placement.storage, strict=True):
            if storage.make is not None and (row.ends or row.name not in storage_in_region):
                self.context.emit(Note(f"creating storage {row.name} ({row.kind}) in {row.zone or row.region}"))
                request = _storage_request(storage, storage.make, row, record.name, network.program_settings)
                request = replace(request, subnets=self._subnets(request, network))
                created[row.name] = self._manager(record.identity.team).create(request).made
        return created

    def _subnets(self, request: StorageRequest, network: "_NewNetwork") -> dict[str, str]:
        """Return the subnets for new storage: a Lustre file system is in the nodes' subnet, EFS in one of each zone."""
        if request.kind == "lustre":
            return _own_subnet(network.candidate)
        if request.kind != "efs" or not network.planned:
            return {}
        asked = network.request
        seen = self.context.cloud.storage.network(request.region, asked)
        chosen = choose_mount_subnets(seen, "", mount_need(request.kind, seen, asked), network.planned)
        return {**chosen.ids, **_own_subnet(network.candidate)}

    def _delete(self, record: ClusterRecord, name: str, region: str) -> None:
        self._manager(record.identity.team).delete(name, region, delete_data=True)

    def _stored_in(self, region: str) -> Mapping[str, TaggedStorage]:
        return {stored.name: stored for stored in self.context.cloud.storage.found(region)}

    def _manager(self, team: str) -> StorageManager:
        return StorageManager(self.context.cloud, self.context, team)


@dataclass(frozen=True)
class _NewNetwork:
    """Where the nodes will run, which decides the subnets of new file systems.

    Attributes:
        program_settings: The settings of the cluster program that the user chose.
        planned: The subnet that the plan chose for each zone of the region.
    """

    candidate: Candidate
    program_settings: Mapping[str, str]
    planned: Mapping[str, str]

    @property
    def request(self) -> NetworkRequest:
        """The settings that determine the VPC and its suitable subnets."""
        vpc, subnet, group = (self.program_settings.get(key, "") for key in ("vpcId", "subnetId", "securityGroupId"))
        return NetworkRequest(
            public_address=self.candidate.public_address,
            own_subnet=bool(subnet),
            own_network=bool(vpc or subnet or group),
            reach="ssm" if self.program_settings.get("reach") == "ssm" else "direct",
            vpc_id=vpc,
            subnet_id=subnet,
            security_group_id=group,
        )


def _own_subnet(candidate: Candidate) -> dict[str, str]:
    return {candidate.zone: candidate.subnet} if candidate.subnet else {}


def _all_or_raise(pieces: Sequence[tuple[str, str]], end: Callable[[str, str], object]) -> None:
    """Call `end` for every (name, region) pair. A failed call does not stop the remaining calls."""
    errors: list[CloudGpuError] = []
    for name, region in pieces:
        try:
            end(name, region)
        except CloudGpuError as err:
            errors.append(err)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        left = [line for err in errors for line in tuple(getattr(err, "left", ())) or (err.message,)]
        hint = "; ".join(dict.fromkeys(err.hint for err in errors if err.hint))
        raise TeardownError("; ".join(err.message for err in errors), left=left, hint=hint) from decisive_cause(errors)


def clear_deletion_marks(record: ClusterRecord) -> ClusterRecord:
    """Return the record with the deletion marks removed from storage that outlives the cluster.

    The cluster is running, so users may write data to the storage from now on.
    """
    rows = [replace(row, ends=row.ends and not row.shared) for row in record.placement.storage]
    return _with_storage(record, rows)


def _places(record: ClusterRecord) -> set[tuple[str, str]]:
    return {(row.name, row.region) for row in record.placement.storage}


def _with_storage(record: ClusterRecord, rows: Sequence[AttachedStorage]) -> ClusterRecord:
    return replace(record, placement=replace(record.placement, storage=tuple(rows)))


def _row(
    storage: Storage, record: ClusterRecord, candidate: Candidate, storage_in_region: Mapping[str, TaggedStorage]
) -> AttachedStorage:
    """Return the row of the cluster's record for a mount's storage, which may not exist yet."""
    name = unique_name(storage, record.identity.token)
    before = next((row for row in record.placement.storage if row.name == name), None)
    stored = storage_in_region.get(name)
    kind = stored.kind if stored is not None else storage.make.kind if storage.make is not None else ""
    own = storage.make is not None and not storage.keep
    return AttachedStorage(
        name=name,
        called=storage.name,
        kind=kind,
        region=candidate.region,
        zone=candidate.zone if kind in ZONAL else "",
        to=str(storage.to),
        mode=storage.mode,
        # Until the cluster is running, also delete storage that its `up` created and that therefore contains no data.
        ends=own or (storage.make is not None and (stored is None if before is None else before.ends)),
    )


def _unknown_storage(row: AttachedStorage, *, simulated: bool) -> RetainedResource:
    """Return retained storage in a region that cannot be queried."""
    return RetainedResource(
        noun="storage",
        name=row.name,
        token="",
        kind=row.kind,
        owner="",
        region=row.region,
        id=row.id,
        since=None,
        size_gib=None,
        monthly_usd=None,
        users=None,
        simulated=simulated,
    )


def _is_near(row: AttachedStorage, candidate: Candidate) -> bool:
    return row.region == candidate.region and row.zone in ("", candidate.zone)


def _find_existing(
    row: AttachedStorage, candidate: Candidate, storage_in_region: Mapping[str, TaggedStorage]
) -> TaggedStorage:
    """Return the row's existing storage if it can be mounted in the candidate's location."""
    found = storage_in_region.get(row.name)
    if found is None or found.data is None or not found.data.ready:
        message = f"storage {row.name} does not exist in {row.region}, or is not ready to be mounted"
        raise StateError(message, hint="run `cloudgpu storage list` to list existing storage")
    places = (found.data.zone,) if found.data.zone else found.mount_zones
    if places and candidate.zone not in places:
        message = f"storage {row.name} is in {', '.join(places)}, but the nodes would be in {candidate.zone}"
        raise StateError(message, hint="run the command again to plan with the current storage")
    return found


def _mount(storage: Storage, stored: TaggedStorage, zone: str) -> Mount:
    return Mount(
        name=storage.name,
        kind=parse_kind(stored.kind),
        to=str(storage.to),
        source=stored.mount_address(zone),
        region=stored.region,
        read_only=storage.mode == "ro",
        mount_name=stored.data.mount_name if stored.data is not None else "",
        client=storage.client,
    )


def _storage_request(
    storage: Storage, make: Make, row: AttachedStorage, cluster: str, program_settings: Mapping[str, str]
) -> StorageRequest:
    subnet = program_settings.get("subnetId", "")
    config = {
        "zone": row.zone,
        "sizeGib": str(int(make.size)) if make.size else "",
        "deployment": (make.deployment or "scratch_2") if make.kind == "lustre" else "",
        "linked": make.linked or "",
        "snapshotId": make.snapshot or "",
        "subnetIds": list_setting([subnet] if subnet else []),
        **{name: program_settings.get(name, "") for name in ("vpcId", "kmsKeyId", "tags")},
    }
    settings = {key: text for key, text in config.items() if text}
    return StorageRequest(row.name, make.kind, row.region, not storage.keep, settings, "" if storage.keep else cluster)


def _refuse_own_vpc(rows: Sequence[AttachedStorage], candidate: Candidate, program_settings: Mapping[str, str]) -> None:
    grouped = [row.name for row in rows if row.kind in FILE_SYSTEMS]
    if grouped and candidate.public_address in GATEWAYS:
        message = f"storage {', '.join(grouped)} cannot be reached from the VPC that is created for nodes behind NAT"
        raise UsageError(message, hint="set public_address to elastic, or set vpc_id and subnet_id")
    if grouped and program_settings.get("createVpc"):
        message = f"storage {', '.join(grouped)} cannot be reached from a VPC that is created with the cluster"
        raise UsageError(message, hint="set create_vpc = false, or set vpc_id for both the cluster and the storage")
