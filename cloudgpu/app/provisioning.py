"""`up`: from a plan to a standing cluster, candidate by candidate, each attempt in the ledger before its call."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal

from cloudgpu.app.happenings import Say
from cloudgpu.app.identifiers import new_token
from cloudgpu.app.ports import Cloud, Ledger
from cloudgpu.app.records import ClusterRecord, Records, write_durably
from cloudgpu.app.teardown import Teardown, check_identity, stack_of
from cloudgpu.clock import Clock
from cloudgpu.errors import (
    BusyError,
    CapacityError,
    LaunchError,
    NoCapacityError,
    NotOfferedError,
    PlanError,
    QuotaError,
    StateError,
    UsageError,
)
from cloudgpu.launch.inventory import Inventory
from cloudgpu.ledger.entry import Spending
from cloudgpu.node.bootstrap import script
from cloudgpu.paths import Home
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.provision.config import stack_config
from cloudgpu.provision.engine import Applied
from cloudgpu.provision.lease import Lease
from cloudgpu.run.progress import Note


@dataclass(frozen=True)
class Buyer:
    """Who buys, and what of theirs is used instead of made."""

    owner: str
    team: str
    public_key: str
    existing: Mapping[str, str] = field(default_factory=dict)
    """Program settings of what is named instead of made: `vpcId`, `subnetId`, `roleName` ..."""


@dataclass(frozen=True)
class Standing:
    """A cluster that stands."""

    record: ClusterRecord
    inventory: Inventory
    made: bool
    """Whether this call made it."""
    tried: tuple[str, ...] = ()
    """One line for every candidate that could not be had."""


class Provisioning:
    """Makes clusters stand. One object for one cloud and one home."""

    def __init__(  # noqa: PLR0917
        self, cloud: Cloud, ledger: Ledger, records: Records, home: Home, clock: Clock, buyer: Buyer, say: Say
    ) -> None:
        self._cloud = cloud
        self._ledger = ledger
        self._records = records
        self._home = home
        self._clock = clock
        self._buyer = buyer
        self._say = say
        self._teardown = Teardown(cloud, ledger, records, home, clock, buyer.owner, say)

    def up(self, plan: Plan, name: str, *, run_id: str = "", keep_on_failure: bool = False) -> Standing:
        """Make the cluster stand; one that stands already is checked and left as it is.

        Raises:
            PlanError: The plan holds an error finding.
            BusyError: Another process is at this cluster.
            NoCapacityError: Every candidate was tried; nothing is left.
            UsageError: A cluster of this name is something else, or is over.
            CloudError: The cloud refused.
        """
        if plan.errors:
            raise PlanError(f"the plan for {name} cannot be applied", findings=[f.message for f in plan.errors])
        with Lease(self._home.cluster(name).root / "lease", self._clock, self._buyer.owner).hold():
            record = self._records.cluster(name)
            if record is not None and record.state == "up":
                return self._standing(plan, record)
            if record is None:
                record = self._new(plan, name, run_id)
            self._check_own(record)
            try:
                return self._make(plan, record)
            except LaunchError:
                self._teardown.end(record)
                raise
            except Exception:
                if not keep_on_failure:
                    self._teardown.end(record)
                raise

    def standing(self, name: str, plan: Plan) -> Standing:
        """A cluster as recorded, fit for the plan, its nodes confirmed alive.

        Raises:
            UsageError: There is none, or it is not up.
            StateError: Some of its nodes are gone.
        """
        record = self._records.cluster(name)
        if record is None or record.state != "up":
            message = (
                f"there is no cluster {name} that is up" if record is None else f"cluster {name} is {record.state}"
            )
            raise UsageError(message, hint="`cloudgpu status` lists the clusters")
        self._check_fits(plan, record)
        return Standing(record, stored_inventory(self._home, record), made=False)

    def _standing(self, plan: Plan, record: ClusterRecord) -> Standing:
        self._check_fits(plan, record)
        self._cloud.engine(record).up(stack_of(self._home, record), self._say)
        return Standing(record, stored_inventory(self._home, record), made=False)

    def _check_fits(self, plan: Plan, record: ClusterRecord) -> None:
        self._check_own(record)
        wanted = {candidate.instance_type for candidate in plan.candidates}
        if record.instance_type not in wanted or record.nodes != plan.nodes:
            raise UsageError(
                f"cluster {record.name} is {record.nodes} x {record.instance_type}, "
                f"not the {plan.nodes} x {' or '.join(sorted(wanted))} that is asked for",
                hint=f"another name with --name, or `cloudgpu down {record.name}` first",
            )
        self._check_alive(record)

    def _new(self, plan: Plan, name: str, run_id: str) -> ClusterRecord:
        now = self._clock.now()
        record = ClusterRecord(
            name=name,
            token=new_token(),
            owner=self._buyer.owner,
            team=self._buyer.team,
            recipe=plan.recipe.name,
            target=plan.target,
            account=self._cloud.account(),
            endpoint=self._cloud.endpoint,
            created_at=now,
            expires_at=(now + timedelta(seconds=plan.expiry_s)).replace(microsecond=0),
            made_by="train" if run_id else "up",
            run_id=run_id,
            nodes=plan.nodes,
        )
        return self._records.save_cluster(record, now)

    def _check_own(self, record: ClusterRecord) -> None:
        check_identity(record, self._cloud)
        if record.state == "ending":
            raise BusyError(f"cluster {record.name} is being ended", hint=f"cloudgpu down {record.name}")
        if record.expires_at <= self._clock.now():
            raise UsageError(
                f"cluster {record.name} expired at {record.expires_at:%Y-%m-%d %H:%M} UTC; its nodes ended themselves",
                hint=f"cloudgpu down {record.name}",
            )

    def _check_alive(self, record: ClusterRecord) -> None:
        states = self._cloud.nodes_alive(record.region, record.instance_ids)
        dead = [f"{node} is {state}" for node, state in states.items() if state not in ("running", "pending")]
        if dead:
            message = f"cluster {record.name} is no longer whole: {', '.join(dead)}"
            raise StateError(message, hint=f"cloudgpu down {record.name}")

    def _make(self, plan: Plan, record: ClusterRecord) -> Standing:
        tried: list[str] = []
        closed: set[tuple[str, str, str]] = set()
        for candidate in plan.candidates:
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
                tried.append(f"{candidate.label}: {err.code or 'refused'}: {err.message}")
                self._say(Note(tried[-1]))
                record = self._records.cluster(record.name) or record
                continue
            return self._finish(record, applied, tried)
        raise NoCapacityError(
            f"no capacity for {plan.nodes} x {' or '.join(sorted({c.instance_type for c in plan.candidates}))} "
            f"in any of the {len(plan.candidates)} candidates",
            tried=tried,
            hint="try again later, more regions (--set resources.regions=...), or another type",
        )

    def _attempt(self, plan: Plan, record: ClusterRecord, candidate: Candidate) -> tuple[ClusterRecord, Applied]:
        """Carry the program out for one candidate. The ledger row and the record stand before the first call."""
        self._say(Note(f"trying {candidate.label}: {plan.nodes} x ${candidate.node_hourly_usd}/h"))
        spending = self._spending(plan, record, candidate)
        record = self._records.save_cluster(self._chosen(plan, record, candidate), self._clock.now())
        self._ledger.open(spending)
        try:
            applied = self._cloud.engine(record).up(stack_of(self._home, record), self._say)
        except (CapacityError, NotOfferedError, QuotaError):
            # A definite refusal: nothing was launched, so the row may be closed at no cost.
            self._ledger.close(spending.entry_id, self._clock.now())
            raise
        ids = [str(instance_id) for instance_id in applied.outputs["instanceIds"]]
        self._ledger.launched(spending.entry_id, ids, self._clock.now())
        return self._records.save_cluster(replace(record, instance_ids=tuple(ids)), self._clock.now()), applied

    def _chosen(self, plan: Plan, record: ClusterRecord, candidate: Candidate) -> ClusterRecord:
        config = stack_config(
            cluster=record.name,
            owner=record.owner,
            team=record.team,
            run=record.run_id,
            expires_at=record.expires_at,
            token=record.token,
            candidate=candidate,
            nodes=plan.nodes,
            public_key=self._buyer.public_key,
            ssh_cidr=self._cloud.caller_cidr(),
            disk_gib=int(plan.recipe.resources.disk),
            existing=self._buyer.existing,
            bootstrap=script(gpu=candidate.gpu, efa=candidate.efa_interfaces > 0),
        )
        regions = (*record.regions, candidate.region) if candidate.region not in record.regions else record.regions
        return replace(
            record,
            regions=regions,
            region=candidate.region,
            zone=candidate.zone,
            instance_type=candidate.instance_type,
            market=candidate.market,
            node_hourly_usd=str(candidate.node_hourly_usd),
            gpu=candidate.gpu,
            gpus_per_node=candidate.gpus_per_node,
            image=candidate.image,
            config=config,
        )

    def _spending(self, plan: Plan, record: ClusterRecord, candidate: Candidate) -> Spending:
        return Spending(
            entry_id=f"{record.token}/{candidate.zone}/{candidate.instance_type}/{candidate.market}",
            cluster=record.name,
            run_id=record.run_id,
            recipe=record.recipe,
            owner=record.owner,
            team=record.team,
            target=record.target,
            simulated=record.simulated,
            account=record.account,
            endpoint=record.endpoint,
            region=candidate.region,
            zone=candidate.zone,
            instance_type=candidate.instance_type,
            market=candidate.market,
            nodes=plan.nodes,
            node_hourly_usd=Decimal(candidate.node_hourly_usd),
            opened_at=self._clock.now(),
            expires_at=record.expires_at,
        )

    def _finish(self, record: ClusterRecord, applied: Applied, tried: Sequence[str]) -> Standing:
        ids = [str(instance_id) for instance_id in applied.outputs["instanceIds"]]
        inventory = self._cloud.inventory(record, ids, self._say)
        path = self._home.cluster(record.name).inventory
        write_durably(path, json.dumps(inventory.as_json(), indent=1) + "\n")
        record = self._records.save_cluster(replace(record, state="up"), self._clock.now())
        return Standing(record, inventory, made=True, tried=tuple(tried))


def stored_inventory(home: Home, record: ClusterRecord) -> Inventory:
    """The nodes as last seen.

    Raises:
        StateError: The file is missing or damaged.
    """
    path = home.cluster(record.name).inventory
    try:
        return Inventory.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError) as err:
        message = f"the inventory {path} cannot be read: {err}"
        raise StateError(message, hint=f"cloudgpu down {record.name}") from err
