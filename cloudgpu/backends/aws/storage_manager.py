"""`storage`: create and delete storage by name, independently of clusters."""

from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from cloudgpu.backends.aws.account import AwsAccount
from cloudgpu.backends.aws.storage import list_storage
from cloudgpu.backends.base import Context
from cloudgpu.backends.billing.cost_ledger import check_ledger, has_failed
from cloudgpu.backends.billing.retained_billing import RetainedBilling, storage_spending
from cloudgpu.backends.storage import CreatedStorage, DeletedStorage, RetainedResource, StorageRequest
from cloudgpu.cloud import TaggedStorage, created_at
from cloudgpu.engine.base import Stack
from cloudgpu.engine.config import read_list_setting
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import BusyError, CloudGpuError, StateError, TeardownError, UsageError
from cloudgpu.paths import bundled_folder
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.subnets import MountSubnets, mount_need, require_mount_subnets
from cloudgpu.recipe.sources import FILE_SYSTEMS
from cloudgpu.run.progress import Note
from cloudgpu.state.identifiers import new_token, require_storage_name
from cloudgpu.state.storage_records import StorageRecord, StorageRecords
from cloudgpu.text import command


class StorageManager:
    """Creates and deletes storage on one target and records it in one state home."""

    def __init__(self, cloud: AwsAccount, context: Context, team: str) -> None:
        """Prepare operations on storage. New storage is tagged with the context's owner and with `team`."""
        self._cloud = cloud
        self._context = context
        self._team = team
        self._records = StorageRecords(context.home)
        self._billing = RetainedBilling(context.ledger, cloud.time.now)
        self._unsaved: list[str] = []

    def choose_subnets(self, request: StorageRequest, network: NetworkRequest) -> MountSubnets | None:
        """Return the subnets for a new file system; None for other storage, and for storage that already exists."""
        if request.kind not in FILE_SYSTEMS or self._records.get(request.name) is not None:
            return None
        seen = self._cloud.storage.network(request.region, network)
        return require_mount_subnets(request.label, seen, request.place, mount_need(request.kind, seen, network))

    def create(self, request: StorageRequest) -> CreatedStorage:
        """Create storage or finish an interrupted creation. Existing storage that matches is left unchanged."""
        with self._lease(request.name).hold(tidy=True):
            record = self._records.get(request.name)
            if record is not None:
                self._check_same(record, request)
                if record.state == "ready":
                    self._restore(record)
                    return CreatedStorage(record, made=False)
            else:
                self._refuse_taken(request)
                if linked := request.config.get("linked"):
                    self._cloud.storage.require_bucket(request.region, linked)
                record = self._new(request)
                self._cloud.storage.engine(record)  # an engine that cannot run must fail before anything is written
                self._records.save(record)
            return CreatedStorage(self._made(record), made=True)

    def rows(self, region: str) -> tuple[RetainedResource, ...]:
        """Return the storage in `region` and in every region that the storage records list."""
        identity = (self._cloud.target, self._cloud.endpoint)
        known = [record for record in self._records.all() if (record.target, record.endpoint) == identity]
        return list_storage(self._cloud.storage, known, region)

    def find_deletable(self, name: str, region: str, *, delete_data: bool) -> TaggedStorage | None:
        """Return the existing storage for the confirmation prompt, or None if no resource has the storage's tag."""
        record = self._known(require_storage_name(name))
        found = self._found(name, record, region)
        _refuse_kept(name, record, found, delete_data=delete_data)
        _refuse_used(name, found)
        return found[0] if found else None

    def delete(self, name: str, region: str, *, delete_data: bool) -> DeletedStorage:
        """Delete storage with its data and verify that nothing is left."""
        with self._lease(name).hold(tidy=True, required=False) as lease:
            if lease.problem:
                self._context.emit(Note(f"{lease.problem}; deleting storage {name} anyway"))
            record = self._known(name)
            found = self._found(name, record, region)
            _refuse_kept(name, record, found, delete_data=delete_data)
            _refuse_used(name, found)
            if record is None and not found:
                # A killed deletion without a record, or from another state home, may have left only the ledger row.
                self._billing.close_deleted(f"storage {name}", self._cloud, region)
                return DeletedStorage(name, known=False)
            parts = tuple(part.label for stored in found for part in stored.parts)
            if record is not None:
                if record.state == "ready":
                    self._restore(record, created_at(found))
                self._marked(record)
            self._end(_planned(name, region, record, found), found, existed=_has_data(found))
            self._forget(name)
            self._report_clocks()
            return DeletedStorage(name, record is not None, parts)

    def delete_orphan(self, name: str, token: str, region: str) -> None:
        """Delete temporary storage that a sweep found, by its record if this state home has one, otherwise by its tags.

        Without a record, the storage may be another owner's: only resources with this token are deleted.
        """
        record = self._readable(name)
        if record is not None and record.token == token:
            self.delete(name, region, delete_data=True)
            return
        found = [stored for stored in self._tagged(name, region, {token}) if stored.disposable]
        _refuse_used(name, found, hint="run `cloudgpu sweep` again later")
        again = "run `cloudgpu sweep` again to repeat the whole search"
        # Without a record, it is unknown whether data existed: bill whatever was left, which is an upper bound.
        self._end(_StorageDeletion(name, region, frozenset({token}), again), found, existed=bool(found))

    def check_recorded(self, name: str) -> None:
        """Raise an error if the deletion could not be recorded."""
        check_ledger(self._context.ledger, f"storage {name} is deleted, verified by tag search")
        if self._unsaved:
            message = f"storage {name} is deleted, but the record could not be updated: {'; '.join(self._unsaved)}"
            hint = f"free some disk space, then run `{command('cloudgpu', 'storage', 'delete', name)}` again"
            raise StateError(message, hint=hint)

    def _marked(self, record: StorageRecord) -> None:
        """Record that the storage is being deleted. A full disk must not prevent the deletion."""
        try:
            self._records.save(record, state="deleting")
        except StateError as err:
            self._context.emit(Note(f"{err.message}; continuing anyway"))

    def _forget(self, name: str) -> None:
        """Remove the record. If the ledger has failed, keep it, so that the next deletion can record the cost."""
        if has_failed(self._context.ledger):
            return
        try:
            self._records.forget(name)
        except StateError as err:
            self._context.emit(Note(err.message))
            self._unsaved.append(err.message)

    def _restore(self, record: StorageRecord, reported: datetime | None = None) -> None:
        at = self._billing.started(reported, record.created_at)
        self._billing.restore(storage_spending(record), at, str(record.outputs.get("id") or ""))

    def _report_clocks(self) -> None:
        if text := self._cloud.time.difference_to_report():
            self._context.emit(Note(text))

    def _lease(self, name: str) -> ClusterLease:
        path = self._context.home.storage(require_storage_name(name)).lease
        return ClusterLease(path, self._context.clock, self._context.owner)

    def _new(self, request: StorageRequest) -> StorageRecord:
        context, token = self._context, new_token()
        own = {
            "storage": request.name,
            "owner": context.owner,
            "team": self._team,
            "token": token,
            "kind": request.kind,
            "keep": "false" if request.disposable else "true",
            # cloudgpu prompts before it deletes data; Pulumi's `protect` would only block a confirmed deletion.
            "protect": "false",
            **({"madeFor": request.made_for} if request.made_for else {}),
        }
        return StorageRecord(
            name=request.name,
            kind=request.kind,
            token=token,
            owner=context.owner,
            team=self._team,
            target=self._cloud.target,
            account=self._cloud.account(),
            endpoint=self._cloud.endpoint,
            region=request.region,
            created_at=self._cloud.time.now(),
            disposable=request.disposable,
            made_for=request.made_for,
            engine=self._cloud.requested_engine or "direct",
            config={**request.program_config, **own},
        )

    def _made(self, record: StorageRecord) -> StorageRecord:
        engine, stack = self._cloud.storage.engine(record), self._stack(record)
        row = storage_spending(record)
        self._billing.open(row)
        try:
            applied = engine.up(stack, self._context.emit)
        except CloudGpuError as err:
            self._undo(record, err)
            err.hint = self._cloud.storage.role_hint(record, err) or err.hint
            raise
        at = self._started(record)
        self._billing.made(row, str(applied.outputs.get("id") or ""), at)
        self._report_clocks()
        return self._records.save(record, state="ready", outputs=dict(applied.outputs), created_at=at)

    def _started(self, record: StorageRecord) -> datetime:
        """Return the creation time by the cloud's clock; the earlier time of the record if the cloud reports none."""
        reported = None
        with suppress(CloudGpuError):
            reported = created_at(self._tagged(record.name, record.region, {record.token}))
        return self._billing.started(reported, record.created_at)

    def _undo(self, record: StorageRecord, cause: CloudGpuError) -> None:
        """Delete partly created storage, which contains no data, so that it does not incur costs."""
        self._context.emit(Note(f"deleting the partly created storage {record.name}"))
        try:
            found = self._found(record.name, record, record.region)
            self._end(_planned(record.name, record.region, record, found), found, existed=_has_data(found))
        except CloudGpuError as err:
            left = tuple(getattr(err, "left", ())) or (f"storage {record.name}",)
            message = f"{cause.message}; and the partly created storage could not be deleted: {err.message}"
            raise TeardownError(
                message, left=left, hint=command("cloudgpu", "storage", "delete", record.name)
            ) from cause
        self._records.forget(record.name)

    def _stack(self, record: StorageRecord) -> Stack:
        return Stack(
            name=record.name,
            region=record.region,
            program=bundled_folder("infra") / "storage",
            config=record.config,
            journal=self._context.home.storage(record.name).journal(record.region),
        )

    def _end(self, plan: "_StorageDeletion", found: Sequence[TaggedStorage], *, existed: bool) -> None:
        """Delete the resources in the journal and those found by a tag search, verify with a second search, and bill.

        This is the only order in which storage is deleted. The ledger rows are closed, and the record may be removed,
        only after a search has found nothing. `existed` is True if the data existed before the deletion.
        """
        left: list[str] = []
        remaining = found
        if plan.record is not None:
            left = self._end_recorded(plan.record, found)
            remaining = self._tagged(plan.name, plan.region, plan.tokens)
        for part in [part for stored in remaining for part in stored.parts]:
            self._context.emit(Note(f"deleting {part.label}"))
        left += [line for stored in remaining for line in self._cloud.storage.end(stored)]
        if not left and (remaining or plan.record is None):
            again = self._tagged(plan.name, plan.region, plan.tokens)
            left = [part.label for stored in again for part in stored.parts]
        if left:
            message = f"storage {plan.name} is not deleted: {'; '.join(left)}"
            raise TeardownError(message, left=left, hint=plan.hint)
        created = {stored.token: created_at([stored]) for stored in found}
        self._billing.ended(f"storage {plan.name}", tuple(plan.tokens), found=existed, created=created)

    def _end_recorded(self, record: StorageRecord, found: Sequence[TaggedStorage]) -> list[str]:
        """Delete the resources that the journal lists, and return what remains.

        Buckets are emptied first, because S3 deletes only empty buckets.
        """
        left: list[str] = []
        for stored in found:
            try:
                self._cloud.storage.empty(stored)
            except CloudGpuError as err:
                left.append(err.message)
        try:
            self._cloud.storage.engine(record).destroy(self._stack(record), self._context.emit)
        except TeardownError as err:
            left += err.left
        except StateError as err:
            self._context.emit(Note(f"{err.message}; searching by tag instead"))
        return left

    def _tagged(self, name: str, region: str, tokens: Set[str]) -> list[TaggedStorage]:
        return [stored for stored in self._cloud.storage.found(region, name) if stored.token in tokens]

    def _known(self, name: str) -> StorageRecord | None:
        """Return the storage's record, after checking that it is a record of this account and endpoint."""
        record = self._readable(name)
        if record is not None:
            self._check_identity(record)
        return record

    def _readable(self, name: str) -> StorageRecord | None:
        """Return the storage's record. If it is missing or damaged, return None, because a tag search is sufficient."""
        return self._records.get_if_readable(name, lambda text: self._context.emit(Note(text)))

    def _found(self, name: str, record: StorageRecord | None, region: str) -> list[TaggedStorage]:
        """Return the storage that matches the record or, without a record, the storage that no other user owns."""
        found = self._cloud.storage.found(record.region if record else region, name)
        if record is not None:
            return [stored for stored in found if stored.token == record.token]
        of_owner = [stored for stored in found if stored.tag("cloudgpu:owner") in ("", self._context.owner)]
        if found and not of_owner:
            owner = found[0].tag("cloudgpu:owner")
            message = f"storage {name} in {region} belongs to {owner}; nothing was deleted"
            raise UsageError(message, hint=command("cloudgpu", "storage", "delete", name, CLOUDGPU_OWNER=owner))
        return of_owner

    def _check_identity(self, record: StorageRecord) -> None:
        account, endpoint = self._cloud.account(), self._cloud.endpoint
        if (record.account, record.endpoint) != (account, endpoint):
            there = f"account {record.account}{' at ' + record.endpoint if record.endpoint else ''}"
            here = f"account {account}{' at ' + endpoint if endpoint else ''}"
            message = f"storage {record.name} was created in {there}, but the current credentials are for {here}"
            raise StateError(message, hint="use the credentials and the `--on` target that created the storage")

    def _check_same(self, record: StorageRecord, request: StorageRequest) -> None:
        self._check_identity(record)
        if record.state == "deleting":
            raise BusyError(
                f"storage {record.name} is being deleted", hint=command("cloudgpu", "storage", "delete", record.name)
            )
        present = StorageRequest(
            record.name,
            record.kind,
            record.region,
            record.disposable,
            {key: _comparable(record.config[key]) for key in request.config if key in record.config},
            record.made_for,
        )
        if present != replace(request, config={key: _comparable(text) for key, text in request.config.items()}):
            message = f"storage {record.name} already exists with different options"
            delete = command("cloudgpu", "storage", "delete", record.name)
            hint = f"choose another name, or run `{delete}` first; `cloudgpu storage list` shows the options"
            raise UsageError(message, hint=hint)
        requested_engine = self._cloud.requested_engine
        if requested_engine and requested_engine != record.engine:
            message = f"storage {record.name} was created with the {record.engine} engine, not {requested_engine}"
            same = command(CLOUDGPU_ENGINE=record.engine)
            raise UsageError(message, hint=f"set {same}; deletion selects the engine automatically")

    def _refuse_taken(self, request: StorageRequest) -> None:
        found = self._cloud.storage.found(request.region, request.name)
        if found:
            owner = found[0].tag("cloudgpu:owner") or "an unknown owner"
            message = f"storage {request.name} already exists in {request.region} and belongs to {owner}"
            raise UsageError(message, hint="choose another name; `cloudgpu storage list` lists existing storage")


@dataclass(frozen=True)
class _StorageDeletion:
    """Storage that is to be deleted.

    Attributes:
        tokens: Tokens of the resources to delete. Other storage may have the same name.
        hint: How to continue if the deletion is not confirmed.
        record: The storage's record; None if the storage is known only by its tags.
    """

    name: str
    region: str
    tokens: frozenset[str]
    hint: str
    record: StorageRecord | None = None


def _planned(name: str, region: str, record: StorageRecord | None, found: Sequence[TaggedStorage]) -> _StorageDeletion:
    """Return the deletion of storage by its record or, without one, of the resources that a search found."""
    again = f"continue with `{command('cloudgpu', 'storage', 'delete', name)}`"
    if record is not None:
        return _StorageDeletion(name, record.region, frozenset({record.token}), again, record)
    return _StorageDeletion(name, region, frozenset(stored.token for stored in found), again)


def _has_data(found: Sequence[TaggedStorage]) -> bool:
    return any(stored.data for stored in found)


def _comparable(text: str) -> str:
    """Return a setting in one form: records of version 0.1.0 have a list of one ID without brackets."""
    items = read_list_setting(text) if text.startswith("[") else ()
    return ",".join(map(str, items)) if items else text


def _refuse_kept(name: str, record: StorageRecord | None, found: Sequence[TaggedStorage], *, delete_data: bool) -> None:
    """Reject the deletion of protected data. The record or, if there is none, the tags say whether data is protected.

    Storage whose creation is not finished contains no data and may always be deleted.
    """
    if delete_data:
        return
    kept = (
        (not record.disposable and record.state != "making")
        if record
        else any(not stored.disposable for stored in found)
    )
    if kept:
        message = f"storage {name} contains protected data"
        delete = command("cloudgpu", "storage", "delete", name, "--delete-data")
        raise UsageError(message, hint=f"run `{delete}` to delete it permanently")


def _refuse_used(
    name: str, found: Sequence[TaggedStorage], hint: str = "delete those instances first: `cloudgpu down CLUSTER`"
) -> None:
    users = [user for stored in found for user in stored.users or ()]
    if users:
        message = f"storage {name} may be in use by {', '.join(users)}"
        raise BusyError(message, hint=hint)
