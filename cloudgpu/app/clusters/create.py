"""`up`: from a plan to a standing cluster, candidate by candidate, each attempt in the ledger before its call."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from cloudgpu.app.clusters.attempts import Attempts, instances
from cloudgpu.app.clusters.capacity_retry import CapacityRetry
from cloudgpu.app.clusters.delete import Teardown
from cloudgpu.app.clusters.refusals import Refusal, exhausted, skipped_line
from cloudgpu.app.clusters.ssh_access import authorize_ssh
from cloudgpu.app.clusters.storage import ClusterStorage, settled
from cloudgpu.backends.billing import ClusterBilling, taken
from cloudgpu.backends.context import CloudContext
from cloudgpu.backends.deletion import end_after
from cloudgpu.backends.launch_request import Requester, in_turn
from cloudgpu.backends.reuse import (
    ProvisionedCluster,
    find_running_cluster,
    require_all_nodes_running,
    require_matching,
    require_same_engine,
    require_usable,
)
from cloudgpu.engine.base import Applied
from cloudgpu.engine.lease import Lease
from cloudgpu.errors import LaunchError, PlanError
from cloudgpu.plan.failover import Skips, left, rule_of
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.run.progress import Note
from cloudgpu.state.identifiers import new_token
from cloudgpu.state.inventories import stored_inventory
from cloudgpu.state.known_catalog import known_catalog
from cloudgpu.state.records import ClusterRecord, write_durably

__all__ = ["ProvisionedCluster", "Provisioning", "Requester"]

_START_LOOK_S = 30.0
"""A machine that sleeps meanwhile must notice its clock when it wakes."""


class Provisioning:
    """Makes clusters stand. One object for one cloud and one home."""

    def __init__(self, context: CloudContext, requester: Requester) -> None:
        self._context = context
        self._requester = requester
        self._billing = ClusterBilling(context)
        self._teardown = Teardown(context)
        self._attempts = Attempts(context, requester)

    def up(
        self, plan: Plan, name: str, *, run_id: str = "", keep_on_failure: bool = False, retry_s: int = 0
    ) -> ProvisionedCluster:
        """Make the cluster stand; one that stands already is checked and left as it is.

        With `retry_s`, a lack of capacity is waited for so long: every round is a cluster of its own, with a token
        and an expiry of its own, so that waiting takes nothing from its time and adds nothing to its worst case.

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
        with Lease(self._context.home.cluster(name).root / "lease", self._context.clock, self._context.owner).hold(
            tidy=True
        ):
            record = self._context.records.cluster(name)
            if record is None or record.state != "up":
                self._wait_for_start(plan)
                rounds = CapacityRetry(self._context, retry_s)
                return rounds.until_up(lambda: self._round(plan, name, run_id, keep_on_failure=keep_on_failure))
        return self.reuse(name, plan)

    def _wait_for_start(self, plan: Plan) -> None:
        """A Capacity Block is not there before its start, and AWS calls that a lack of capacity. Nothing stands yet."""
        clock = self._context.clock
        if plan.starts_at is None or plan.starts_at <= clock.now():
            return
        self._context.emit(Note(f"waiting until {plan.starts_at:%Y-%m-%d %H:%M} UTC, when what is reserved starts"))
        while (left_s := (plan.starts_at - clock.now()).total_seconds()) > 0:
            clock.sleep(min(left_s, _START_LOOK_S))

    def _round(self, plan: Plan, name: str, run_id: str, *, keep_on_failure: bool) -> ProvisionedCluster:
        record = self._begun(plan, name, self._context.records.cluster(name), run_id)
        return self._made(plan, record, keep_on_failure=keep_on_failure)

    def reuse(self, name: str, plan: Plan) -> ProvisionedCluster:
        """A cluster as recorded, fit for the plan, its nodes confirmed alive and open to the caller.

        Raises:
            UsageError: There is none, it is not up, or it has another shape.
            StateError: Some of its nodes are gone.
        """
        record = find_running_cluster(self._context, name)
        require_same_engine(self._context, record)
        require_matching(plan, record)
        require_all_nodes_running(self._context, record)
        return ProvisionedCluster(
            authorize_ssh(self._context, record), stored_inventory(self._context.home, record), made=False
        )

    def _begun(self, plan: Plan, name: str, record: ClusterRecord | None, run_id: str) -> ClusterRecord:
        """The record of a cluster that is to be made: a new one, or the one that a killed `up` left."""
        if record is None:
            record = self._new(plan, name, run_id)
            self._context.cloud.engine(record)  # an engine that cannot work says so before anything is written
            self._refuse_taken(plan, record)
            return self._context.records.save_cluster(record, self._context.clock.now())
        require_usable(self._context, record)
        require_same_engine(self._context, record)
        if record.region:
            require_matching(plan, record)
        return record

    def _new(self, plan: Plan, name: str, run_id: str) -> ClusterRecord:
        now = self._context.clock.now()
        return ClusterRecord(
            name=name,
            token=new_token(),
            owner=self._requester.owner,
            team=self._requester.team,
            recipe=plan.recipe.name,
            target=plan.target,
            account=self._context.cloud.account(),
            endpoint=self._context.cloud.endpoint,
            created_at=now,
            expires_at=(now + timedelta(seconds=plan.expiry_s)).replace(microsecond=0),
            made_by="train" if run_id else "up",
            run_id=run_id,
            engine=self._context.cloud.engine_asked_for or "direct",
            nodes=plan.nodes,
            max_usd=str(plan.recipe.budget.max_usd or ""),
        )

    def _refuse_taken(self, plan: Plan, record: ClusterRecord) -> None:
        """Refuse a name that is in use elsewhere: by the shared ledger, and by the tags that everybody can see."""
        if record.name == record.run_id:
            return  # made up a moment ago
        self._billing.refuse_taken(record)
        regions = tuple(dict.fromkeys(candidate.region for candidate in plan.candidates))
        found = [one for one in self._context.cloud.search(record.name, regions) if one.kind == "instance"]
        if found:
            tags = found[0].tags
            raise taken(record.name, tags.get("cloudgpu:owner", ""), tags.get("cloudgpu:expires-at", "?"))

    def _made(self, plan: Plan, record: ClusterRecord, *, keep_on_failure: bool) -> ProvisionedCluster:
        """Make it, or leave nothing behind: also after an error that nobody foresaw."""
        try:
            return self._make(plan, record)
        except LaunchError as err:
            end_after(self._teardown.end, record, err)
            raise
        except Exception as err:
            if not keep_on_failure:
                end_after(self._teardown.end, record, err)
            raise

    def _make(self, plan: Plan, record: ClusterRecord) -> ProvisionedCluster:
        refusals: list[Refusal] = []
        waiting = tuple(in_turn(plan, record))
        while waiting:
            candidate, waiting = waiting[0], waiting[1:]
            if record.region and record.region != candidate.region:
                self._teardown.end_region(record, record.region)
            try:
                record, applied = self._attempts.at(plan, record, candidate)
            except LaunchError as err:
                skips = rule_of(err).skips
                if skips == "stop":
                    raise
                refusals.append(Refusal(candidate, err))
                self._context.emit(Note(refusals[-1].line))
                waiting = self._left(waiting, candidate, skips)
                record = self._context.records.cluster(record.name) or record
                continue
            return self._finish(record, applied, [one.whole for one in refusals])
        raise exhausted(plan, refusals, known_catalog(self._context.home, plan.target))

    def _left(self, waiting: Sequence[Candidate], refused: Candidate, skips: Skips) -> tuple[Candidate, ...]:
        """Those that are still worth asking for; the others are named, so that nobody waits for them."""
        remaining = left(waiting, refused, skips)
        skipped = [one for one in waiting if one not in remaining]
        if skipped:
            self._context.emit(Note(skipped_line(refused, skipped, skips)))
        return remaining

    def _finish(self, record: ClusterRecord, applied: Applied, tried: Sequence[str]) -> ProvisionedCluster:
        # Before anything is waited for: a node's boot waits for its disks.
        ClusterStorage(self._context).attach(record, instances(applied))
        inventory = self._context.cloud.inventory(record, instances(applied), self._context.emit)
        path = self._context.home.cluster(record.name).inventory
        write_durably(path, json.dumps(inventory.as_json(), indent=1) + "\n")
        record = self._context.records.save_cluster(replace(settled(record), state="up"), self._context.clock.now())
        return ProvisionedCluster(record, inventory, made=True, tried=tuple(tried))
