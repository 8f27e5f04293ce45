"""`up`: create a cluster by trying a plan's candidates, repeatedly with `--retry-until-up`.

The ledger lists each attempt before its launch call. No nodes run between two rounds of attempts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from secrets import SystemRandom

from cloudgpu.backends.aws.account import CloudContext
from cloudgpu.backends.aws.clusters.delete import Teardown
from cloudgpu.backends.aws.clusters.launch_attempt import CandidateLauncher, launched_instance_ids
from cloudgpu.backends.aws.clusters.ssh_access import authorize_ssh, update_in_place
from cloudgpu.backends.aws.clusters.storage import ClusterStorage, clear_deletion_marks
from cloudgpu.backends.aws.clusters.verified_deletion import delete_by_journal
from cloudgpu.backends.billing.cluster_billing import ClusterBilling, name_in_use_error
from cloudgpu.backends.lifecycle.credential_wait import CredentialWait
from cloudgpu.backends.lifecycle.deletion import delete_after_failure
from cloudgpu.backends.lifecycle.existing_cluster import (
    find_running_cluster,
    hold_lease,
    require_all_nodes_running,
    require_matching,
    require_usable,
)
from cloudgpu.backends.lifecycle.launch_request import Requester, new_record, require_applicable
from cloudgpu.backends.lifecycle.node_boot import launched, log_folder, save_consoles
from cloudgpu.backends.lifecycle.results import ProvisionedCluster
from cloudgpu.catalog import Catalog
from cloudgpu.catalog.prices_and_quotas import quota_of
from cloudgpu.engine.base import AppliedStack
from cloudgpu.engine.config import RoleGrants, role_grants
from cloudgpu.errors import (
    CapacityError,
    CloudError,
    LaunchError,
    NoCapacityError,
    NotOfferedError,
    QuotaError,
    UsageError,
)
from cloudgpu.plan.launch_error_codes import Skips, pauses_s, remaining_candidates, rule_for_error
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.plan.substitutes import alternatives
from cloudgpu.recipe.field_types import DurationS
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.progress import Note
from cloudgpu.state.catalog_snapshots import known_catalog
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.nodes import mention, save_inventory, stored_inventory
from cloudgpu.text import command, plural

_RANDOM = SystemRandom()
_START_POLL_S = 30.0
"""Poll interval in seconds. Short sleeps keep the wait accurate even if this machine is suspended."""


@dataclass(frozen=True)
class LaunchFailure:
    """A candidate that could not be launched."""

    candidate: Candidate
    err: LaunchError

    @property
    def line(self) -> str:
        """One-line summary: `us-east-1c p3dn.24xlarge on-demand: no capacity (InsufficientInstanceCapacity)`."""
        code = f" ({self.err.code})" if self.err.code else ""
        return f"{self.candidate.label}: {rule_for_error(self.err).summary}{code}"

    @property
    def full_line(self) -> str:
        """The summary followed by AWS's error message, for records and JSON."""
        return f"{self.line}: {self.err.message}"


def skipped_line(refused: Candidate, skipped: Sequence[Candidate], skips: Skips) -> str:
    """Format the skipped candidates: `skipped, same quota: us-east-1d p3dn.24xlarge on-demand`."""
    common = {"pool": "quota", "region": f"quota of {refused.region}", "type": "type"}.get(skips, "reason")
    return f"skipped, same {common}: {', '.join(candidate.label for candidate in skipped)}"


def no_capacity_error(plan: Plan, refusals: Sequence[LaunchFailure], catalog: Catalog) -> NoCapacityError:
    """Return the error to raise when none of a plan's candidates could be launched.

    Quota limits are reported before a lack of capacity, because the user can act on them.
    """
    types = sorted({candidate.instance_type for candidate in plan.candidates})
    requested = f"{plan.nodes} x {' or '.join(types)}"
    capacity_errors = _of(refusals, CapacityError)
    return NoCapacityError(
        f"{requested} not available: {'; '.join(_reasons(plan, refusals)) or 'the plan has no candidates'}",
        tried=[refusal.full_line for refusal in refusals],
        passing=bool(capacity_errors),
        hint="; or ".join(dict.fromkeys(_hints(plan, refusals, catalog))),
    )


def _of(refusals: Sequence[LaunchFailure], error_class: type[LaunchError]) -> list[LaunchFailure]:
    return [refusal for refusal in refusals if isinstance(refusal.err, error_class)]


def _reasons(plan: Plan, refusals: Sequence[LaunchFailure]) -> Iterator[str]:
    total = f"of {plural(len(plan.candidates), 'candidate')}"
    limits = _of(refusals, QuotaError)
    if limits:
        pools = dict.fromkeys(f"{limit.candidate.market} in {limit.candidate.region}" for limit in limits)
        yield f"the account's quota is too low ({', '.join(pools)})"
    for error_class, reason in ((CapacityError, "no capacity"), (NotOfferedError, "not offered")):
        matching = _of(refusals, error_class)
        if matching:
            yield f"{reason} ({len(matching)} {total})"


def _hints(plan: Plan, refusals: Sequence[LaunchFailure], catalog: Catalog) -> Iterator[str]:
    for refusal in _of(refusals, QuotaError):
        yield _quota_request(plan, refusal, catalog)
    for refusal in _of(refusals, NotOfferedError):
        if refusal.err.hint:
            yield refusal.err.hint
    exhausted_quotas = {
        quota_of(refusal.candidate.instance_type, refusal.candidate.market) for refusal in _of(refusals, QuotaError)
    }
    yield from alternatives(plan, catalog, exhausted_quotas)
    if _of(refusals, CapacityError):
        yield "wait for capacity with --retry-until-up"


def _quota_request(plan: Plan, refusal: LaunchFailure, catalog: Catalog) -> str:
    """Return a hint with the quota increase to request. If the quota is not a vCPU quota, return the error's hint."""
    candidate = refusal.candidate
    if rule_for_error(refusal.err).skips != "pool":
        return refusal.err.hint or f"request an increase in Service Quotas in {candidate.region}"
    quota = quota_of(candidate.instance_type, candidate.market)
    instance_type = catalog.types.get(candidate.instance_type)
    amount = f"at least {plan.nodes * instance_type.vcpus} vCPUs" if instance_type else "more"
    return f"request {amount} of {quota} in {candidate.region}: {quota.console(candidate.region)}"


class CapacityRetry:
    """Repeats an attempt while it fails because of a temporary lack of capacity."""

    def __init__(self, context: CloudContext, limit_s: int, jitter: Callable[[], float] = _RANDOM.random) -> None:
        self._context = context
        self._limit = timedelta(seconds=limit_s)
        self._jitter = jitter

    def until_up(self, attempt: Callable[[], ProvisionedCluster]) -> ProvisionedCluster:
        """Call `attempt` once, and then again with pauses while capacity is temporarily unavailable.

        `attempt` must not leave resources behind when it fails.
        """
        clock = self._context.clock
        until = clock.now() + self._limit
        pauses, count = pauses_s(self._jitter), 1
        while True:
            try:
                return attempt()
            except NoCapacityError as err:
                remaining_s = (until - clock.now()).total_seconds()
                if remaining_s < 1 or not err.passing:
                    raise _with_count(err, count, self._limit) from None
            self._wait(count, min(next(pauses), remaining_s), until)
            count += 1

    def _wait(self, count: int, wait_s: float, until: datetime) -> None:
        clock = self._context.clock
        next_at = clock.now() + timedelta(seconds=wait_s)
        self._context.emit(
            Note(
                f"no capacity in round {count}; nothing is running or billed. Round {count + 1} starts in "
                f"{wait_s:.0f} s, at {next_at:%H:%M:%S} UTC. Retries end at {until:%Y-%m-%d %H:%M} UTC; "
                "press Ctrl-C to stop"
            )
        )
        clock.sleep(wait_s)


def _with_count(err: NoCapacityError, count: int, limit: timedelta) -> NoCapacityError:
    if count == 1:
        return err
    duration = DurationS(int(limit.total_seconds()))
    message = f"{err.message} after {count} rounds in {duration}"
    return NoCapacityError(message, tried=err.tried, passing=err.passing, hint=err.hint)


class Provisioning:
    """Creates clusters in one cloud and records them in one state home."""

    def __init__(self, context: CloudContext, requester: Requester) -> None:
        self._context = context
        self._requester = requester
        self._billing = ClusterBilling(context)
        self._teardown = Teardown(context)
        self._attempts = CandidateLauncher(context, requester.public_key)

    def create(
        self, plan: Plan, name: str, *, run_id: str = "", keep_on_failure: bool = False, retry_s: int = 0
    ) -> ProvisionedCluster:
        """Create a cluster. If it already exists, verify it, and allow it what `reuse_cluster` allows.

        With `retry_s`, retry for that many seconds while there is no capacity. Every round creates a cluster record
        with a new token and expiry, so that waiting neither shortens the cluster's lifetime nor raises its worst-case
        cost.
        """
        require_applicable(plan, name)
        with hold_lease(self._context, name):
            record = self._context.records.cluster(name)
            if record is None or record.state != "up":
                self._wait_for_start(plan)
                retry = CapacityRetry(self._context, retry_s)
                created = retry.until_up(lambda: self._round(plan, name, run_id, keep_on_failure=keep_on_failure))
            else:
                created = None
        if created is None:
            return reuse_cluster(self._context, name, plan)
        if created.record.identity.run_id == run_id:
            return created
        # An interrupted command began the cluster for another run, and allowed its nodes to upload only that run.
        return replace(created, record=authorize_data(self._context, created.record, plan.recipe))

    def _wait_for_start(self, plan: Plan) -> None:
        """Wait until the plan's reservation starts. Before then, AWS would reject the launch for lack of capacity."""
        clock = self._context.clock
        if plan.starts_at is None or plan.starts_at <= clock.now():
            return
        self._context.emit(Note(f"waiting until {plan.starts_at:%Y-%m-%d %H:%M} UTC, when the reservation starts"))
        while (remaining_s := (plan.starts_at - clock.now()).total_seconds()) > 0:
            clock.sleep(min(remaining_s, _START_POLL_S))

    def _round(self, plan: Plan, name: str, run_id: str, *, keep_on_failure: bool) -> ProvisionedCluster:
        record = self._prepare_record(plan, name, self._context.records.cluster(name), run_id)
        return self._create_or_clean_up(plan, record, keep_on_failure=keep_on_failure)

    def _prepare_record(self, plan: Plan, name: str, record: ClusterRecord | None, run_id: str) -> ClusterRecord:
        """Verify and return the record that an interrupted `up` left or, without one, save and return a new record."""
        if record is None:
            record = self._new_record(plan, name, run_id)
            require_gang_launch(plan, record)
            self._context.cloud.engine(record)  # an engine that cannot run must fail before anything is written
            self._refuse_taken(plan, record)
            return self._context.records.save_cluster(record, self._context.clock.now())
        require_usable(self._context, record)
        require_same_engine(self._context, record)
        require_gang_launch(plan, record)
        if record.placement.region:
            require_matching(plan, record)
        return record

    def _new_record(self, plan: Plan, name: str, run_id: str) -> ClusterRecord:
        record = new_record(self._context.backend, plan, name, self._requester, run_id, self._context.clock.now())
        engine = self._context.cloud.requested_engine or "direct"
        return replace(record, identity=replace(record.identity, engine=engine))

    def _refuse_taken(self, plan: Plan, record: ClusterRecord) -> None:
        """Reject a name that another cluster uses, according to the ledger or the tags of instances."""
        if record.name == record.identity.run_id:
            return  # the name was just generated from the run ID
        self._billing.require_free_name(record)
        regions = tuple(dict.fromkeys(candidate.region for candidate in plan.candidates))
        tagged = self._context.cloud.search(record.name, regions)
        instances_of_name = [resource for resource in tagged if resource.kind == "instance"]
        if instances_of_name:
            tags = instances_of_name[0].tags
            raise name_in_use_error(record.name, tags.get("cloudgpu:owner", ""), tags.get("cloudgpu:expires-at", ""))

    def _create_or_clean_up(self, plan: Plan, record: ClusterRecord, *, keep_on_failure: bool) -> ProvisionedCluster:
        """Create the cluster and delete it on failure. With `keep_on_failure`, delete it only if the launch failed."""
        try:
            return self._try_candidates(plan, record)
        except LaunchError as err:
            delete_after_failure(self._teardown.end, record, err)
            raise
        except Exception as err:
            if not keep_on_failure:
                delete_after_failure(self._teardown.end, record, err)
            raise

    def _try_candidates(self, plan: Plan, record: ClusterRecord) -> ProvisionedCluster:
        refusals: list[LaunchFailure] = []
        waiting = tuple(candidates_in_order(plan, record))
        while waiting:
            candidate, waiting = waiting[0], waiting[1:]
            if record.placement.region and record.placement.region != candidate.region:
                delete_by_journal(self._context, record, record.placement.region)
            try:
                record, applied = self._attempts.at(plan, record, candidate)
            except LaunchError as err:
                skips = rule_for_error(err).skips
                if skips == "stop":
                    raise
                refusals.append(LaunchFailure(candidate, err))
                self._context.emit(Note(refusals[-1].line))
                waiting = self._remaining(waiting, candidate, skips)
                record = self._context.records.cluster(record.name) or record
                continue
            return self._finish(record, applied, [refusal.full_line for refusal in refusals])
        raise no_capacity_error(plan, refusals, known_catalog(self._context.home, plan.target))

    def _remaining(self, waiting: Sequence[Candidate], refused: Candidate, skips: Skips) -> tuple[Candidate, ...]:
        """Return the candidates that are still worth trying, and emit a note that lists the skipped candidates."""
        remaining = remaining_candidates(waiting, refused, skips)
        skipped = [candidate for candidate in waiting if candidate not in remaining]
        if skipped:
            self._context.emit(Note(skipped_line(refused, skipped, skips)))
        return remaining

    def _finish(self, record: ClusterRecord, applied: AppliedStack, tried: Sequence[str]) -> ProvisionedCluster:
        # Attach the volumes before waiting for the nodes, because the nodes wait for the volumes while booting.
        ClusterStorage(self._context).attach(record, launched_instance_ids(applied))
        ids = launched_instance_ids(applied)
        try:
            wait = CredentialWait(self._context.clock, self._context.emit, record.lifecycle.expires_at)
            inventory = wait.retry(lambda: self._context.cloud.new_nodes.inventory(record, ids, self._context.emit))
        except CloudError as err:
            failed = {index: ids[index] for index in err.nodes}
            folder = log_folder(self._context.home, record)
            err.hint = mention(err.hint, save_consoles(self._context, record.placement.region, failed, folder))
            raise
        save_inventory(self._context.home, record.name, inventory)
        record = self._context.records.save_cluster(launched(clear_deletion_marks(record)), self._context.clock.now())
        return ProvisionedCluster(record, inventory, made=True, tried=tuple(tried))


def require_gang_launch(plan: Plan, record: ClusterRecord) -> None:
    """Reject a launch of several spot nodes with the pulumi engine, whose provider cannot launch all or none.

    The plan reports the same (the check `all-or-none`) for the engine of the settings. A record of an earlier version
    names its own engine.
    """
    is_spot = any(candidate.market == "spot" for candidate in plan.candidates)
    if record.identity.engine == "pulumi" and plan.nodes > 1 and is_spot:
        message = f"the pulumi engine cannot launch the {plan.nodes} spot nodes of cluster {record.name} all or none"
        hint = f"use --engine direct, after `{command('cloudgpu', 'down', record.name)}` if an `up` was interrupted"
        raise UsageError(message, hint=hint)


def require_same_engine(context: CloudContext, record: ClusterRecord) -> None:
    """Reject a cluster that another engine created.

    The engines keep separate state, so neither can update or delete the other's resources.
    """
    requested = context.cloud.requested_engine
    if requested and requested != record.identity.engine:
        message = f"cluster {record.name} was created with the {record.identity.engine} engine, not {requested}"
        same, delete = command("--engine", record.identity.engine), command("cloudgpu", "down", record.name)
        hint = f"use {same}, or delete the cluster first with `{delete}`, which always uses the right engine"
        raise UsageError(message, hint=hint)


def reuse_cluster(context: CloudContext, name: str, plan: Plan) -> ProvisionedCluster:
    """Verify that a running cluster matches the plan, and authorize SSH from the caller's address.

    Also allow the nodes to access the S3 locations of the plan's recipe.
    """
    record = find_running_cluster(context, name)
    require_same_engine(context, record)
    require_matching(plan, record)
    require_all_nodes_running(context, record)
    record = authorize_data(context, authorize_ssh(context, record), plan.recipe)
    return ProvisionedCluster(record, stored_inventory(context.home, record), made=False)


def authorize_data(context: CloudContext, record: ClusterRecord, recipe: Recipe) -> ClusterRecord:
    """Allow the nodes of an existing cluster to access the S3 locations of a recipe, for this run and later ones.

    A role or instance profile of the user is never changed.
    """
    config = record.placement.config
    granted, needed = RoleGrants.from_config(config), role_grants(recipe)
    if granted.covers(needed) or config.get("roleName") or config.get("instanceProfile"):
        return record
    locations = f"the S3 locations of recipe {recipe.name}"
    doing = f"allowing the nodes of cluster {record.name} to access {locations}"
    refused = f"the nodes of cluster {record.name} may not access {locations}"
    return update_in_place(context, record, granted.union(needed).config, doing=doing, refused=refused)


def candidates_in_order(plan: Plan, record: ClusterRecord) -> Sequence[Candidate]:
    """Return the candidates in the order in which to try them.

    The candidate that an interrupted `up` was launching comes first, because its nodes may already exist.
    """

    def other(candidate: Candidate) -> bool:
        interrupted = (record.placement.zone, record.placement.instance_type, record.placement.market)
        return (candidate.zone, candidate.instance_type, candidate.market) != interrupted

    return sorted(plan.candidates, key=other)
