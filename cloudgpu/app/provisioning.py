"""`up`: from a plan to a standing cluster, candidate by candidate, each attempt in the ledger before its call."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from cloudgpu.app.books import Books, taken
from cloudgpu.app.desk import Desk
from cloudgpu.app.happenings import Happening
from cloudgpu.app.identifiers import new_token
from cloudgpu.app.purchase import Buyer, chosen, in_turn, spending
from cloudgpu.app.records import ClusterRecord, write_durably
from cloudgpu.app.refusals import Refusal, exhausted, tried_line
from cloudgpu.app.standing import Standing, check_alive, check_fits, check_own, let_in, stored_inventory
from cloudgpu.app.teardown import Teardown, stack_of
from cloudgpu.errors import (
    CapacityError,
    LaunchError,
    NotOfferedError,
    PlanError,
    QuotaError,
    UsageError,
)
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.provision.engine import Applied, Event
from cloudgpu.provision.lease import Lease
from cloudgpu.run.progress import Note

__all__ = ["Buyer", "Provisioning", "Standing"]

_FLEET = "aws:ec2/fleet:Fleet"


class Provisioning:
    """Makes clusters stand. One object for one cloud and one home."""

    def __init__(self, desk: Desk, buyer: Buyer) -> None:
        self._desk = desk
        self._buyer = buyer
        self._books = Books(desk)
        self._teardown = Teardown(desk)

    def up(self, plan: Plan, name: str, *, run_id: str = "", keep_on_failure: bool = False) -> Standing:
        """Make the cluster stand; one that stands already is checked and left as it is.

        Raises:
            PlanError: The plan holds an error finding.
            BusyError: Another process is at this cluster, or somebody else has one of this name.
            NoCapacityError: Every candidate was tried; nothing is left.
            UsageError: A cluster of this name is something else, or is over.
            CloudError: The cloud refused.
            TeardownError: It failed, and what it had made could not be ended.
        """
        if plan.errors:
            raise PlanError(f"the plan for {name} cannot be applied", findings=[f.message for f in plan.errors])
        with Lease(self._desk.home.cluster(name).root / "lease", self._desk.clock, self._desk.owner).hold(tidy=True):
            record = self._desk.records.cluster(name)
            if record is None or record.state != "up":
                return self._made(plan, self._begun(plan, name, record, run_id), keep_on_failure=keep_on_failure)
        return self.standing(name, plan)

    def standing(self, name: str, plan: Plan) -> Standing:
        """A cluster as recorded, fit for the plan, its nodes confirmed alive and open to the caller.

        Raises:
            UsageError: There is none, it is not up, or it has another shape.
            StateError: Some of its nodes are gone.
        """
        record = self._desk.records.cluster(name)
        if record is None or record.state != "up":
            message = (
                f"there is no cluster {name} that is up" if record is None else f"cluster {name} is {record.state}"
            )
            raise UsageError(message, hint="`cloudgpu status` lists the clusters")
        check_own(self._desk, record)
        check_fits(plan, record)
        check_alive(self._desk, record)
        return Standing(let_in(self._desk, record), stored_inventory(self._desk.home, record), made=False)

    def _begun(self, plan: Plan, name: str, record: ClusterRecord | None, run_id: str) -> ClusterRecord:
        """The record of a cluster that is to be made: a new one, or the one that a killed `up` left."""
        if record is None:
            record = self._new(plan, name, run_id)
            self._refuse_taken(plan, record)
            return self._desk.records.save_cluster(record, self._desk.clock.now())
        check_own(self._desk, record)
        if record.region:
            check_fits(plan, record)
        return record

    def _new(self, plan: Plan, name: str, run_id: str) -> ClusterRecord:
        now = self._desk.clock.now()
        return ClusterRecord(
            name=name,
            token=new_token(),
            owner=self._buyer.owner,
            team=self._buyer.team,
            recipe=plan.recipe.name,
            target=plan.target,
            account=self._desk.cloud.account(),
            endpoint=self._desk.cloud.endpoint,
            created_at=now,
            expires_at=(now + timedelta(seconds=plan.expiry_s)).replace(microsecond=0),
            made_by="train" if run_id else "up",
            run_id=run_id,
            nodes=plan.nodes,
        )

    def _refuse_taken(self, plan: Plan, record: ClusterRecord) -> None:
        """Refuse a name that is in use elsewhere: by the shared ledger, and by the tags that everybody can see."""
        if record.name == record.run_id:
            return  # made up a moment ago
        self._books.refuse_taken(record)
        regions = tuple(dict.fromkeys(candidate.region for candidate in plan.candidates))
        found = [one for one in self._desk.cloud.search(record.name, regions) if one.kind == "instance"]
        if found:
            tags = found[0].tags
            raise taken(record.name, tags.get("cloudgpu:owner", ""), tags.get("cloudgpu:expires-at", "?"))

    def _made(self, plan: Plan, record: ClusterRecord, *, keep_on_failure: bool) -> Standing:
        """Make it, or leave nothing behind: also after an error that nobody foresaw."""
        try:
            return self._make(plan, record)
        except LaunchError as err:
            self._teardown.end_after(record, err)
            raise
        except Exception as err:
            if not keep_on_failure:
                self._teardown.end_after(record, err)
            raise

    def _make(self, plan: Plan, record: ClusterRecord) -> Standing:
        refusals: list[Refusal] = []
        closed: set[tuple[str, str, str]] = set()
        for candidate in in_turn(plan, record):
            pool = (candidate.region, candidate.market, candidate.instance_type)
            if pool in closed:
                continue
            if record.region and record.region != candidate.region:
                self._teardown.end_region(record, record.region)
            try:
                record, applied = self._attempt(plan, record, candidate)
            except (CapacityError, NotOfferedError, QuotaError) as err:
                if isinstance(err, QuotaError):
                    closed.add(pool)
                refusals.append((candidate, err))
                self._desk.say(Note(tried_line(candidate, err)))
                record = self._desk.records.cluster(record.name) or record
                continue
            return self._finish(record, applied, [tried_line(*one) for one in refusals])
        raise exhausted(plan, refusals)

    def _attempt(self, plan: Plan, record: ClusterRecord, candidate: Candidate) -> tuple[ClusterRecord, Applied]:
        """Carry the program out for one candidate. The ledger row and the record stand before the first call."""
        desk = self._desk
        desk.say(Note(f"trying {candidate.label}: {plan.nodes} x ${candidate.node_hourly_usd}/h"))
        record = chosen(record, plan, candidate, self._buyer, desk.cloud.caller_cidr())
        row = spending(record, plan, candidate, desk.clock.now())
        record = desk.records.save_cluster(record, desk.clock.now())
        desk.ledger.open(row)
        launch = _Launch(desk)
        try:
            applied = desk.cloud.engine(record).up(stack_of(desk.home, record), launch.hear)
        except (CapacityError, NotOfferedError, QuotaError):
            # A definite refusal: nothing was launched, so the row may be closed at no cost.
            desk.ledger.close(row.entry_id, desk.clock.now())
            raise
        ids = _instances(applied)
        desk.ledger.launched(row.entry_id, ids, launch.at or self._opened_at(record, row.entry_id))
        return desk.records.save_cluster(replace(record, instance_ids=ids), desk.clock.now()), applied

    def _opened_at(self, record: ClusterRecord, entry_id: str) -> datetime:
        """When the call was made whose answer a killed `up` never wrote down."""
        rows = self._books.rows(record)
        return next(row.spending.opened_at for row in rows if row.spending.entry_id == entry_id and row.state == "open")

    def _finish(self, record: ClusterRecord, applied: Applied, tried: Sequence[str]) -> Standing:
        inventory = self._desk.cloud.inventory(record, _instances(applied), self._desk.say)
        path = self._desk.home.cluster(record.name).inventory
        write_durably(path, json.dumps(inventory.as_json(), indent=1) + "\n")
        record = self._desk.records.save_cluster(replace(record, state="up"), self._desk.clock.now())
        return Standing(record, inventory, made=True, tried=tuple(tried))


class _Launch:
    """Listens for the moment in which the gang was bought."""

    def __init__(self, desk: Desk) -> None:
        self.at: datetime | None = None
        self._desk = desk

    def hear(self, what: Happening) -> None:
        """Pass it on."""
        if isinstance(what, Event) and what.kind == "done" and what.operation == "create" and what.type == _FLEET:
            self.at = self._desk.clock.now()
        self._desk.say(what)


def _instances(applied: Applied) -> tuple[str, ...]:
    return tuple(str(instance_id) for instance_id in applied.outputs["instanceIds"])
