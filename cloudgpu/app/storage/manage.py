"""`storage`: data that outlives clusters. Made by name, deleted by name, and never by a cluster's end."""

from collections.abc import Sequence, Set
from dataclasses import replace
from decimal import Decimal

from cloudgpu.app.storage.context import Created, Deleted, StorageContext, StorageRequest
from cloudgpu.aws.storage.stored import Stored
from cloudgpu.backends.lenient_ledger import LenientLedger
from cloudgpu.backends.retained_billing import RetainedBilling, RetainedSpending
from cloudgpu.catalog.storage import KINDS, storage_price
from cloudgpu.engine.base import Stack
from cloudgpu.engine.lease import Lease
from cloudgpu.errors import BusyError, CloudGpuError, StateError, TeardownError, UsageError
from cloudgpu.paths import bundled
from cloudgpu.run.progress import Note
from cloudgpu.state.identifiers import checked_storage, new_token
from cloudgpu.state.storage_records import StorageRecord
from cloudgpu.text import command


class StorageManager:
    """Makes and deletes storage of one home on one target."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self._billing = RetainedBilling(context.ledger, context.clock)
        self._unsaved: list[str] = []

    def create(self, request: StorageRequest) -> Created:
        """Make it, or go on making it; what stands already as it is wished for is left alone.

        Raises:
            UsageError: The name is taken, by another kind, another size or another person.
            TeardownError: It could not be made, and some of it could not be ended either.
            CloudGpuError: It could not be made; nothing of it is left.
        """
        with self._lease(request.name).hold(tidy=True):
            record = self._context.records.one(request.name)
            if record is not None:
                self._check_same(record, request)
                if record.state == "ready":
                    self._restore(record)
                    return Created(record, made=False)
            else:
                self._refuse_taken(request)
                record = self._new(request)
                self._context.cloud.engine(record)  # an engine that cannot work says so before anything is written
                self._context.records.save(record)
            return Created(self._made(record), made=True)

    def deletable(self, name: str, region: str, *, delete_data: bool) -> Stored | None:
        """What there is of it now, for whoever is asked whether it may go; None when nothing carries its tag.

        Raises:
            UsageError: Its data was to be kept, or it is somebody else's.
            BusyError: Instances use it.
            StateError: It was made under another account or endpoint.
            CloudError: The cloud cannot be asked.
        """
        record = self._known(checked_storage(name))
        found = self._found(name, record, region)
        _refuse_kept(name, record, found, delete_data=delete_data)
        _refuse_used(name, found)
        return found[0] if found else None

    def delete(self, name: str, region: str, *, delete_data: bool) -> Deleted:
        """Delete it with its data, and say so only when the cloud confirms it.

        Raises:
            UsageError: Its maker wanted its data kept, and `delete_data` was not given; or it is somebody else's.
            BusyError: Instances use it, or another process is at it.
            TeardownError: Something is left.
        """
        with self._lease(name).hold(tidy=True, required=False) as lease:
            if lease.problem:
                self._context.emit(Note(f"{lease.problem}; deleting storage {name} all the same"))
            record = self._known(name)
            found = self._found(name, record, region)
            _refuse_kept(name, record, found, delete_data=delete_data)
            _refuse_used(name, found)
            if record is None and not found:
                return Deleted(name, known=False)
            parts = tuple(part.label for one in found for part in one.parts)
            if record is not None:
                if record.state == "ready":
                    self._restore(record)
                self._marked(record)
            self._end(name, record, found)
            self._closed(name, record, found)
            self._forget(name)
            return Deleted(name, record is not None, parts)

    def check_recorded(self, name: str) -> None:
        """Refuse to call a deletion done that could not be recorded.

        Raises:
            LedgerError: The ledger could not be read or written.
            StateError: The record could not be removed.
        """
        if isinstance(self._context.ledger, LenientLedger):
            self._context.ledger.check(f"storage {name} is gone, confirmed by a search for its tag")
        if self._unsaved:
            message = f"storage {name} is gone, but the state home does not say so: {'; '.join(self._unsaved)}"
            hint = f"free some space on its disk, then `{command('cloudgpu', 'storage', 'delete', name)}` again"
            raise StateError(message, hint=hint)

    def _marked(self, record: StorageRecord) -> None:
        """Say in the record that it is being deleted. A full disk is no reason to go on paying for it."""
        try:
            self._context.records.save(record, state="deleting")
        except StateError as err:
            self._context.emit(Note(f"{err.message}; going on all the same"))

    def _forget(self, name: str) -> None:
        """Remove the record, unless the next deletion has to write from it what the storage has cost."""
        if isinstance(self._context.ledger, LenientLedger) and self._context.ledger.failed:
            return
        try:
            self._context.records.forget(name)
        except StateError as err:
            self._context.emit(Note(err.message))
            self._unsaved.append(err.message)

    def _restore(self, record: StorageRecord) -> None:
        self._billing.restore(retained_spending(record), record.created_at, str(record.outputs.get("id") or ""))

    def _lease(self, name: str) -> Lease:
        path = self._context.home.storage(checked_storage(name)).lease
        return Lease(path, self._context.clock, self._context.owner)

    def _new(self, request: StorageRequest) -> StorageRecord:
        context, token = self._context, new_token()
        own = {
            "storage": request.name,
            "owner": context.owner,
            "team": context.team,
            "token": token,
            "kind": request.kind,
            "keep": "false" if request.disposable else "true",
            # This home asks before it deletes; Pulumi's own lock would only stand in the way of what was agreed to.
            "protect": "false",
            **({"madeFor": request.made_for} if request.made_for else {}),
        }
        return StorageRecord(
            name=request.name,
            kind=request.kind,
            token=token,
            owner=context.owner,
            team=context.team,
            target=context.cloud.target,
            account=context.cloud.account(),
            endpoint=context.cloud.endpoint,
            region=request.region,
            created_at=context.clock.now(),
            disposable=request.disposable,
            made_for=request.made_for,
            engine=context.cloud.engine_asked_for or "direct",
            config={**request.config, **own},
        )

    def _made(self, record: StorageRecord) -> StorageRecord:
        engine, stack = self._context.cloud.engine(record), self._stack(record)
        row = retained_spending(record)
        self._billing.open(row)
        try:
            applied = engine.up(stack, self._context.emit)
        except CloudGpuError as err:
            self._undo(record, err)
            raise
        self._billing.made(row, str(applied.outputs.get("id") or ""))
        return self._context.records.save(record, state="ready", outputs=dict(applied.outputs))

    def _undo(self, record: StorageRecord, cause: CloudGpuError) -> None:
        """Nobody has put data into what never stood: it ends at once, or the failure goes on costing."""
        self._context.emit(Note(f"ending what was made of storage {record.name}"))
        try:
            found = self._found(record.name, record, record.region)
            self._end(record.name, record, found)
            self._closed(record.name, record, found)
        except CloudGpuError as err:
            left = tuple(getattr(err, "left", ())) or (f"storage {record.name}",)
            message = f"{cause.message}; and what was made could not be ended: {err.message}"
            raise TeardownError(
                message, left=left, hint=command("cloudgpu", "storage", "delete", record.name)
            ) from cause
        self._context.records.forget(record.name)

    def _closed(self, name: str, record: StorageRecord | None, found: Sequence[Stored]) -> None:
        tokens = [*(one.token for one in found), *([record.token] if record else [])]
        self._billing.ended(f"storage {name}", tokens, found=any(one.data for one in found))

    def _stack(self, record: StorageRecord) -> Stack:
        return Stack(
            name=record.name,
            region=record.region,
            program=bundled("infra") / "storage",
            config=record.config,
            journal=self._context.home.storage(record.name).journal(record.region),
        )

    def _end(self, name: str, record: StorageRecord | None, found: Sequence[Stored]) -> None:
        """What the journal knows, then what only the tags know; a second search has to come back empty.

        Raises:
            TeardownError: Something is left; all of it is named.
        """
        left: list[str] = []
        if record is not None:
            left = self._end_recorded(record, found)
            found = self._tagged(name, {record.region}, {record.token})
        for part in [part for one in found for part in one.parts]:
            self._context.emit(Note(f"ending {part.label}"))
        left += [line for one in found for line in self._context.cloud.end(one)]
        if not left and found:
            again = self._tagged(name, {one.region for one in found}, {one.token for one in found})
            left = [part.label for one in again for part in one.parts]
        if left:
            message = f"storage {name} is not gone: {'; '.join(left)}"
            raise TeardownError(
                message,
                left=left,
                hint=f"`{command('cloudgpu', 'storage', 'delete', name)}` goes on where this stopped",
            )

    def _end_recorded(self, record: StorageRecord, found: Sequence[Stored]) -> list[str]:
        """By the journal; a bucket has to be empty before S3 lets it go."""
        left: list[str] = []
        for one in found:
            try:
                self._context.cloud.empty(one)
            except CloudGpuError as err:
                left.append(err.message)
        try:
            self._context.cloud.engine(record).destroy(self._stack(record), self._context.emit)
        except TeardownError as err:
            left += err.left
        except StateError as err:
            self._context.emit(Note(f"{err.message}; looking for what it knew by tags"))
        return left

    def _tagged(self, name: str, regions: Set[str], tokens: Set[str]) -> list[Stored]:
        found = [one for region in sorted(regions) for one in self._context.cloud.found(region, name)]
        return [one for one in found if one.token in tokens]

    def _known(self, name: str) -> StorageRecord | None:
        """The record; one that cannot be read is passed over, for the tags tell enough to delete by.

        Raises:
            StateError: It was made under another account or endpoint: what is not found here is not gone.
        """
        try:
            record = self._context.records.one(name)
        except StateError as err:
            self._context.emit(Note(f"{err.message}; looking for it by its tags"))
            return None
        if record is not None:
            self._check_identity(record)
        return record

    def _found(self, name: str, record: StorageRecord | None, region: str) -> list[Stored]:
        """Of the record, or of this owner.

        Raises:
            UsageError: What carries the name is all somebody else's.
        """
        found = self._context.cloud.found(record.region if record else region, name)
        if record is not None:
            return [one for one in found if one.token == record.token]
        mine = [one for one in found if one.tag("cloudgpu:owner") in ("", self._context.owner)]
        if found and not mine:
            owner = found[0].tag("cloudgpu:owner")
            message = f"storage {name} in {region} belongs to {owner}; nothing was done"
            raise UsageError(message, hint=command("cloudgpu", "storage", "delete", name, CLOUDGPU_OWNER=owner))
        return mine

    def _check_identity(self, record: StorageRecord) -> None:
        account, endpoint = self._context.cloud.account(), self._context.cloud.endpoint
        if (record.account, record.endpoint) != (account, endpoint):
            there = f"account {record.account}{' at ' + record.endpoint if record.endpoint else ''}"
            here = f"account {account}{' at ' + endpoint if endpoint else ''}"
            message = f"storage {record.name} was made in {there}, but the present credentials belong to {here}"
            raise StateError(message, hint="use the credentials and the --on that it was made with")

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
            {key: record.config[key] for key in request.config if key in record.config},
            record.made_for,
        )
        if present != replace(request, config=dict(request.config)):
            message = f"storage {record.name} is there already, and not as it is asked for now"
            delete = command("cloudgpu", "storage", "delete", record.name)
            hint = f"another name, or `{delete}` first; `cloudgpu storage list` shows it"
            raise UsageError(message, hint=hint)
        asked = self._context.cloud.engine_asked_for
        if asked and asked != record.engine:
            message = f"storage {record.name} was begun by the {record.engine} engine, not the {asked} engine"
            same = command(CLOUDGPU_ENGINE=record.engine)
            raise UsageError(message, hint=f"{same}; deleting it uses the right one by itself")

    def _refuse_taken(self, request: StorageRequest) -> None:
        found = self._context.cloud.found(request.region, request.name)
        if found:
            owner = found[0].tag("cloudgpu:owner") or "nobody known"
            message = f"storage {request.name} is there already in {request.region}, and belongs to {owner}"
            raise UsageError(message, hint="choose another name; `cloudgpu storage list` shows what there is")


def retained_spending(record: StorageRecord) -> RetainedSpending:
    """What the ledger is told of it. What grows with what it holds has no price that could be told before."""
    kind = next((kind for kind in KINDS if kind == record.kind), None)
    price = storage_price(kind, record.region, record.config.get("deployment", "")) if kind else None
    size = record.config.get("sizeGib")
    return RetainedSpending(
        noun="storage",
        name=record.name,
        what=" ".join(part for part in (record.kind, record.config.get("deployment", "")) if part),
        token=record.token,
        owner=record.owner,
        team=record.team,
        target=record.target,
        account=record.account,
        endpoint=record.endpoint,
        region=record.region,
        monthly_usd=price.monthly_usd(Decimal(size)) if price and size else None,
    )


def _refuse_kept(name: str, record: StorageRecord | None, found: Sequence[Stored], *, delete_data: bool) -> None:
    """What was never ready holds nothing; of what has no record, the tags say whether it is to be kept."""
    if delete_data:
        return
    kept = (not record.disposable and record.state != "making") if record else any(not one.disposable for one in found)
    if kept:
        message = f"storage {name} holds data that was to be kept"
        raise UsageError(
            message, hint=f"`{command('cloudgpu', 'storage', 'delete', name, '--delete-data')}` deletes it for good"
        )


def _refuse_used(name: str, found: Sequence[Stored]) -> None:
    users = [user for one in found for user in one.users or ()]
    if users:
        message = f"storage {name} may be in use by {', '.join(users)}"
        raise BusyError(message, hint="end those instances first: `cloudgpu down CLUSTER`")
