"""Storage around a cluster's life: found or made before its nodes are bought, attached to them, ended after them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cloudgpu.app.storage.context import StorageContext, StorageRequest
from cloudgpu.app.storage.manage import StorageManager
from cloudgpu.app.storage.overview import monthly_usd
from cloudgpu.aws.storage.stored import Stored
from cloudgpu.backends.context import CloudContext
from cloudgpu.backends.retained_billing import RetainedBilling
from cloudgpu.backends.storage_outcome import NO_STORAGE, Kept, Ready, Settled
from cloudgpu.errors import BusyError, CloudGpuError, StateError, TeardownError, UsageError
from cloudgpu.node.bootstrap.mounts import Mount, as_kind
from cloudgpu.plan.plan import Candidate
from cloudgpu.plan.storage import GROUPED, ZONAL
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.storage import Make, Storage
from cloudgpu.run.progress import Note
from cloudgpu.state.attached_storage import AttachedStorage, own_name
from cloudgpu.state.records import ClusterRecord
from cloudgpu.state.storage_records import StorageRecords


@dataclass(frozen=True)
class ClusterStorage:
    """Storage of one cluster at a time. The caller holds the cluster's lease."""

    context: CloudContext

    def ready(
        self, recipe: Recipe, record: ClusterRecord, candidate: Candidate, existing: Mapping[str, str]
    ) -> tuple[ClusterRecord, Ready]:
        """Find or make what the recipe mounts, beside this candidate; the record says so before anything is made.

        `existing` holds settings of the cluster program for what is named instead of made.

        Raises:
            UsageError: The nodes would stand in a VPC that the storage cannot be in.
            StateError: What the plan has seen is not there any more.
            CloudGpuError: It cannot be made.
        """
        record = self._moved(record, candidate)
        if not recipe.storage:
            return record, NO_STORAGE
        there = self._there(candidate.region)
        rows = tuple(_row(one, record, candidate, there) for one in recipe.storage)
        record = self.context.records.save_cluster(replace(record, storage=rows), self.context.clock.now())
        _refuse_own_vpc(rows, existing)
        if self._made(recipe, record, existing, there):
            there = self._there(candidate.region)
        found = [_find_existing(row, candidate, there) for row in rows]
        pairs = zip(rows, found, strict=True)
        rows = tuple(replace(row, id=one.data.id if one.data else "") for row, one in pairs)
        record = self.context.records.save_cluster(replace(record, storage=rows), self.context.clock.now())
        mounts = tuple(_mount(one, stored) for one, stored in zip(recipe.storage, found, strict=True))
        groups = dict.fromkeys(one.security_group_id for one in found if one.security_group_id)
        return record, Ready(mounts, tuple(groups))

    def attach(self, record: ClusterRecord, instance_ids: Sequence[str]) -> None:
        """Attach its disks to its node; their mounts wait for them.

        Raises:
            BusyError: A disk is attached elsewhere.
            CloudError: AWS refused.
        """
        for number, row in enumerate(row for row in record.storage if row.kind == "ebs"):
            self.context.emit(Note(f"attaching storage {row.name} to {instance_ids[0]}"))
            self.context.cloud.storage().attach(row.region, row.id, instance_ids[0], number)

    def end(self, record: ClusterRecord) -> Settled:
        """End what goes with the cluster, and name what stays. Its nodes are gone.

        Raises:
            TeardownError: Something is left.
        """
        ending = [(row.name, row.region) for row in record.storage if row.ends]
        _all_or_raise(ending, lambda name, region: self._delete(record, name, region))
        staying = [row for row in record.storage if not row.ends]
        kept = [
            one for region in sorted({row.region for row in staying}) for one in self._kept(record, region, staying)
        ]
        return Settled(tuple(name for name, _ in ending), tuple(kept))

    def _kept(self, record: ClusterRecord, region: str, staying: Sequence[AttachedStorage]) -> list[Kept]:
        """Describe what stays in one region; where it does not answer, by the record alone."""
        rows = [row for row in staying if row.region == region]
        try:
            there = self._there(region)
        except CloudGpuError as err:
            self.context.emit(Note(f"{err.message}; what the storage there costs is unknown"))
            return [Kept(row.name, row.kind, row.region, None, record.simulated) for row in rows]
        found = [there[row.name] for row in rows if row.name in there]
        return [Kept(one.name, one.kind, one.region, monthly_usd(one), record.simulated) for one in found]

    def end_unrecorded(self, cluster: str, regions: Sequence[str]) -> Settled:
        """End what tells by its tags that it was made for a cluster of this name, and belongs to this owner.

        Raises:
            TeardownError: Something is left.
        """
        meant: list[Stored] = []

        def end_in(_: str, region: str) -> None:
            found = self.context.cloud.storage().found(region)
            here = [one for one in found if one.made_for == cluster and one.disposable and self._mine(one)]
            meant.extend(here)
            pairs = [(one.name, one.region) for one in here]
            _all_or_raise(pairs, lambda name, where: self._room("").delete(name, where, delete_data=True))

        _all_or_raise([("", region) for region in regions], end_in)
        return Settled(tuple(one.name for one in meant))

    def end_stray(self, name: str, token: str, region: str) -> None:
        """End storage that a sweep found, whoever made it: by its record where this home has it, else by its tags.

        Raises:
            BusyError: Instances use it.
            TeardownError: Something is left.
        """
        record = StorageRecords(self.context.home).one(name)
        if record is not None and record.token == token:
            self._room("").delete(name, region, delete_data=True)
            return
        stores = self.context.cloud.storage()
        found = [one for one in stores.found(region, name) if one.token == token and one.disposable]
        users = [user for one in found for user in one.users or ()]
        if users:
            raise BusyError(f"storage {name} may be in use by {', '.join(users)}", hint="`cloudgpu sweep` again")
        left = [line for one in found for line in stores.end(one)]
        again = [one for one in stores.found(region, name) if one.token == token]
        left += [part.label for one in again for part in one.parts]
        if left:
            hint = "`cloudgpu sweep` again; it looks at everything anew"
            raise TeardownError(f"storage {name} is not gone: {'; '.join(left)}", left=left, hint=hint)
        RetainedBilling(self.context.ledger, self.context.clock).ended(f"storage {name}", [token], found=bool(found))

    def _mine(self, one: Stored) -> bool:
        return one.tag("cloudgpu:owner") in ("", self.context.owner)

    def _moved(self, record: ClusterRecord, candidate: Candidate) -> ClusterRecord:
        """What was made beside an earlier candidate, and nobody has used, ends before it is made anew elsewhere."""
        away = [row for row in record.storage if row.ends and not _beside(row, candidate)]
        for row in away:
            self.context.emit(Note(f"storage {row.name} stands in {row.zone or row.region}: it is made anew"))
            self._delete(record, row.name, row.region)
        return replace(record, storage=tuple(row for row in record.storage if row not in away))

    def _made(
        self,
        recipe: Recipe,
        record: ClusterRecord,
        existing: Mapping[str, str],
        there: Mapping[str, Stored],
    ) -> bool:
        """Make what is to be made; whether there was anything to do."""
        begun = False
        for one, row in zip(recipe.storage, record.storage, strict=True):
            if one.make is not None and (row.ends or row.name not in there):
                self.context.emit(Note(f"making storage {row.name} ({row.kind}) in {row.zone or row.region}"))
                self._room(record.team).create(_storage_request(one, one.make, row, record.name, existing))
                begun = True
        return begun

    def _delete(self, record: ClusterRecord, name: str, region: str) -> None:
        self._room(record.team).delete(name, region, delete_data=True)

    def _there(self, region: str) -> Mapping[str, Stored]:
        return {one.name: one for one in self.context.cloud.storage().found(region)}

    def _room(self, team: str) -> StorageManager:
        context = self.context
        records = StorageRecords(context.home)
        return StorageManager(
            StorageContext(
                context.cloud.storage(),
                records,
                context.home,
                context.clock,
                context.owner,
                team,
                context.emit,
                context.ledger,
            )
        )


def _all_or_raise(pieces: Sequence[tuple[str, str]], end: Callable[[str, str], object]) -> None:
    """Delete all of these, each a name and a region; one that fails never stops the others.

    Raises:
        TeardownError: Several failed; everything that is left is named.
        CloudGpuError: One failed: its error as it is.
    """
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
        raise TeardownError("; ".join(err.message for err in errors), left=left, hint=hint) from errors[0]


def settled(record: ClusterRecord) -> ClusterRecord:
    """The record of a cluster that stands: from now on people put data into what the recipe says is to be kept."""
    own = {one.called for one in record.storage if one.name != one.called}
    return replace(record, storage=tuple(replace(row, ends=row.ends and row.called in own) for row in record.storage))


def _row(one: Storage, record: ClusterRecord, candidate: Candidate, there: Mapping[str, Stored]) -> AttachedStorage:
    """As it stands, or as it will be made."""
    name = own_name(one, record.token)
    before = next((row for row in record.storage if row.name == name), None)
    stands = there.get(name)
    kind = stands.kind if stands is not None else one.make.kind if one.make is not None else ""
    own = one.make is not None and not one.keep
    return AttachedStorage(
        name=name,
        called=one.name,
        kind=kind,
        region=candidate.region,
        zone=candidate.zone if kind in ZONAL else "",
        to=str(one.to),
        mode=one.mode,
        # An `up` that was killed had made it for this cluster alone, and nobody has used it since.
        ends=own or (one.make is not None and (stands is None if before is None else before.ends)),
    )


def _beside(row: AttachedStorage, candidate: Candidate) -> bool:
    return row.region == candidate.region and row.zone in ("", candidate.zone)


def _find_existing(row: AttachedStorage, candidate: Candidate, there: Mapping[str, Stored]) -> Stored:
    """What stands under this name beside the candidate.

    Raises:
        StateError: Nothing, or not there, or it cannot be mounted.
    """
    found = there.get(row.name)
    if found is None or found.data is None or not found.data.ready:
        message = f"storage {row.name} is not there in {row.region}, or cannot be mounted now"
        raise StateError(message, hint="`cloudgpu storage list` shows what there is")
    if found.data.zone not in ("", candidate.zone):
        message = f"storage {row.name} stands in {found.data.zone}, and the nodes would be in {candidate.zone}"
        raise StateError(message, hint="run the command again: it plans with what there is now")
    return found


def _mount(one: Storage, stored: Stored) -> Mount:
    data = stored.data
    address, mount_name = (data.address, data.mount_name) if data is not None else ("", "")
    return Mount(
        name=one.name,
        kind=as_kind(stored.kind),
        to=str(one.to),
        source=address,
        region=stored.region,
        read_only=one.mode == "ro",
        mount_name=mount_name,
        client=one.client,
    )


def _storage_request(
    one: Storage, make: Make, row: AttachedStorage, cluster: str, existing: Mapping[str, str]
) -> StorageRequest:
    named = {"vpcId": "vpcId", "subnetIds": "subnetId", "kmsKeyId": "kmsKeyId"}
    config = {
        "zone": row.zone,
        "sizeGib": str(int(make.size)) if make.size else "",
        "deployment": (make.deployment or "scratch_2") if make.kind == "lustre" else "",
        "linked": make.linked or "",
        "snapshotId": make.snapshot or "",
        **{key: existing.get(name, "") for key, name in named.items()},
    }
    wanted = {key: text for key, text in config.items() if text}
    return StorageRequest(row.name, make.kind, row.region, not one.keep, wanted, "" if one.keep else cluster)


def _refuse_own_vpc(rows: Sequence[AttachedStorage], existing: Mapping[str, str]) -> None:
    grouped = [row.name for row in rows if row.kind in GROUPED]
    if grouped and existing.get("createVpc"):
        message = f"storage {', '.join(grouped)} cannot be reached from a VPC that is made with the cluster"
        raise UsageError(message, hint="create_vpc = false, or name vpc_id for both")
