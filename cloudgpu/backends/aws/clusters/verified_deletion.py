"""Search for resources by cluster tag, delete them, search again, and close their ledger rows.

The time is unknown if a node shut itself down, if another program released an Elastic IP, or if AWS no longer lists
the resource. The estimate is then the time at which the termination was confirmed, which is an upper bound. An
estimate that is too high can be corrected from the AWS bill; an estimate that is too low would go unnoticed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from cloudgpu.aws.ec2.billing_times import Lifetime
from cloudgpu.aws.ec2.tagged_types import (
    GLOBAL,
    OWNER_TAG,
    SHUTDOWN_S,
    TERMINATED_STATES,
    TERMINATING_STATES,
    TOKEN_TAG,
    FoundResource,
    SearchResult,
)
from cloudgpu.backends.aws.account import CloudContext
from cloudgpu.backends.aws.clusters.failures import RegionFailures
from cloudgpu.backends.tagged_resource import TaggedResource
from cloudgpu.engine.direct.deployment import OnWait, ignore_wait
from cloudgpu.errors import CloudGpuError, TeardownError
from cloudgpu.ledger.entry import LedgerEntry, Part, PartEnd
from cloudgpu.run.progress import Activity, Note
from cloudgpu.text import command, plural
from cloudgpu.workers import Workers

_LISTED_AFTER = timedelta(minutes=15)
_KINDS: Mapping[Part, str] = {"gateway": "nat-gateway", "elastic-ips": "elastic-ip"}
NODE_KINDS = ("fleet", "instance")
ResourceFilter = Callable[[TaggedResource], bool]
_AT_ONCE = 8
"""Maximum number of regions processed at the same time."""


@dataclass(frozen=True)
class LedgerCloser:
    """Closes the ledger rows of a cluster after its deletion has been confirmed.

    Attributes:
        alive: (entry ID, part) pairs for the parts that still existed when the teardown started.
    """

    context: CloudContext
    alive: frozenset[tuple[str, Part]]

    @classmethod
    def started(cls, context: CloudContext, entries: Iterable[LedgerEntry]) -> "LedgerCloser":
        """Return a closer that knows which NAT gateways and Elastic IPs exist. Call this before they are deleted."""
        alive: set[tuple[str, Part]] = set()
        for entry in entries:
            if entry.state == "open" and entry.outlasting_parts:
                existing = {resource.kind for resource in _network(context, entry) if resource.alive}
                alive |= {
                    (entry.spending.entry_id, part) for part in entry.outlasting_parts if _KINDS[part] in existing
                }
        return cls(context, frozenset(alive))

    def close(self, entries: Iterable[LedgerEntry]) -> None:
        """Close the open entries. Call this after a search has confirmed that none of their resources remain."""
        still_open = [entry for entry in entries if entry.state == "open"]
        for entry in still_open:
            self._close(entry, self.context.cloud.time.now())
        if still_open:
            report_clock_difference(self.context)

    def _close(self, entry: LedgerEntry, now: datetime) -> None:
        ledger, entry_id = self.context.ledger, entry.spending.entry_id
        if entry.launched_at is None:
            ledger.close(entry_id, now)
            return
        ends = {
            "nodes": entry.parts.get("nodes") or last_termination(self.context, entry, now),
            **self._network_ends(entry, now),
        }
        last = max(end.at for end in ends.values())
        for part, end in ends.items():
            if end.estimated or end.at != last:
                ledger.part_ended(entry_id, part, end.at, estimated=end.estimated)
        ledger.close(entry_id, last)

    def _network_ends(self, entry: LedgerEntry, now: datetime) -> dict[Part, PartEnd]:
        if not entry.outlasting_parts:
            return {}
        lifetimes = _network(self.context, entry)
        return {part: self._network_end(entry, part, lifetimes, now) for part in entry.outlasting_parts}

    def _network_end(self, entry: LedgerEntry, part: Part, lifetimes: Iterable[Lifetime], now: datetime) -> PartEnd:
        ends = [resource.ended_at for resource in lifetimes if resource.kind == _KINDS[part]]
        known = [at for at in ends if at is not None]
        if known and len(known) == len(ends):
            return PartEnd(entry.within_lifetime(max(known), now))
        return PartEnd(now, estimated=(entry.spending.entry_id, part) not in self.alive)


def record_node_ends(context: CloudContext, entries: Iterable[LedgerEntry]) -> None:
    """Record the termination time for each entry whose nodes have all terminated, although the cluster still exists.

    AWS reports the termination time for about an hour. After that, the time of this check is recorded as an estimate,
    which is closer to the actual time than the time at which the cluster is deleted.
    """
    now = context.cloud.time.now()
    for entry in entries:
        if entry.state == "open" and entry.instance_ids and "nodes" not in entry.parts and _ended(context, entry, now):
            end = last_termination(context, entry, now)
            context.ledger.part_ended(entry.spending.entry_id, "nodes", end.at, estimated=end.estimated)


def close_failed_launch(context: CloudContext, entries: Iterable[LedgerEntry]) -> None:
    """Close the open entries after a launch whose instances have been terminated.

    The cost is an upper bound, because AWS does not report whether an instance ran before it was terminated.
    """
    now = context.cloud.time.now()
    for entry in entries:
        if entry.state == "open":
            if entry.launched_at is not None:
                end = last_termination(context, entry, now)
                context.ledger.part_ended(entry.spending.entry_id, "nodes", end.at, estimated=True)
            context.ledger.close(entry.spending.entry_id, now)


def report_clock_difference(context: CloudContext) -> None:
    """Report if this machine's clock differs from the cloud's, by which costs are counted."""
    if text := context.cloud.time.difference_to_report():
        context.emit(Note(text))


def _ended(context: CloudContext, entry: LedgerEntry, now: datetime) -> bool:
    """Return True if all nodes of an entry have terminated.

    A recently launched node counts as running even if AWS does not list it yet.
    """
    known = context.cloud.lifetimes(entry.spending.region, entry.instance_ids)
    young = now - (entry.launched_at or now) < _LISTED_AFTER
    return all(not known[node].alive if node in known else not young for node in entry.instance_ids)


def last_termination(context: CloudContext, entry: LedgerEntry, now: datetime) -> PartEnd:
    """Return when the last node of an entry terminated; `now`, as an estimate, if AWS does not report every time.

    The caller must have confirmed that all nodes are terminated.
    """
    try:
        known = context.cloud.lifetimes(entry.spending.region, entry.instance_ids)
    except CloudGpuError:
        known = {}
    ends = [known[node].ended_at if node in known else None for node in entry.instance_ids]
    reported = [at for at in ends if at is not None]
    if not reported or len(reported) < len(ends):
        return PartEnd(now, estimated=True)
    return PartEnd(entry.within_lifetime(max(reported), now))


def _network(context: CloudContext, entry: LedgerEntry) -> tuple[Lifetime, ...]:
    try:
        return tuple(context.cloud.network_lifetimes(entry.spending.region, entry.spending.entry_id.partition("/")[0]))
    except CloudGpuError:
        return ()


@dataclass(frozen=True)
class RecordedInstances:
    """The instances in a cluster's record, which are terminated even if the search does not find them."""

    region: str = ""
    instance_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class TerminationResult:
    """The result of terminating the nodes.

    Attributes:
        ended: Terminated nodes that are not in the cluster's record, for example `instance i-0abc`.
        seen: All nodes that the search found, including nodes that had already terminated.
        errors: Region -> error. A region with an error may still contain resources.
    """

    ended: tuple[str, ...] = ()
    seen: tuple[TaggedResource, ...] = ()
    errors: Mapping[str, CloudGpuError] = field(default_factory=dict)


@dataclass(frozen=True)
class TagSearch:
    """Finds and deletes resources by cluster tag."""

    context: CloudContext

    def search(self, name: str, regions: Sequence[str], whose: ResourceFilter) -> SearchResult:
        """Search these regions (`global`: IAM) for resources that have the cluster's tag and match `whose`."""
        result = self.context.cloud.search_each(name, regions)
        return SearchResult(
            tuple(resource for resource in result.found if whose(resource)),
            result.failures,
            tuple(resource for resource in result.terminated if whose(resource)),
        )

    def end_nodes(
        self, name: str, regions: Sequence[str], whose: ResourceFilter, recorded: RecordedInstances
    ) -> TerminationResult:
        """Terminate the nodes in all regions concurrently, so that a slow or failing region delays no other region.

        Call this before deleting by journal, which waits for resources that the nodes use.
        """

        def work(region: str) -> TerminationResult:
            known = recorded.instance_ids if region == recorded.region else ()
            return self._end_nodes_in(name, region, whose, known)

        if len(regions) == 1:
            return work(regions[0])  # no thread, so that Ctrl-C can interrupt the call
        with Workers(min(_AT_ONCE, len(regions)), "nodes") as pool:
            done = list(pool.map(work, regions))
        return TerminationResult(
            tuple(line for result in done for line in result.ended),
            tuple(node for result in done for node in result.seen),
            {region: err for result in done for region, err in result.errors.items()},
        )

    def delete_remaining(
        self, name: str, regions: Sequence[str], whose: ResourceFilter, failures: RegionFailures
    ) -> tuple[str, ...]:
        """Delete the resources that a search still finds, region by region, and search again. Return what was deleted.

        Regions in `failures` are skipped, because another search would only time out again. IAM (`global`) comes last
        and only if no region has failed, because the expiry schedules in a failed region need their IAM role.
        """
        ended: list[str] = []
        for region in sorted(regions, key=lambda region: region == GLOBAL):
            if region in failures or (region == GLOBAL and failures):
                continue
            with failures.guard(region):
                ended += self._empty_region(name, region, whose)
        return tuple(ended)

    def _end_nodes_in(self, name: str, region: str, whose: ResourceFilter, known: Sequence[str]) -> TerminationResult:
        result = self.search(name, [region], whose)
        errors = dict(result.failures)
        nodes = [resource for resource in result.found if resource.kind in NODE_KINDS]
        missing = sorted(set(known) - {node.id for node in nodes})
        instance_ids = [node.id for node in nodes if node.kind == "instance"] + missing
        with ShutdownWait(self.context, name, region, instance_ids) as wait:
            for end in (partial(self._release, name, nodes, wait), partial(self._terminate, region, missing, wait)):
                try:
                    end()
                except CloudGpuError as err:
                    errors.setdefault(region, wait.error() or err)
        recorded = any(node.id in known for node in nodes)
        # Fleets are not recorded: a fleet counts as known if an instance found in the same search is known.
        unrecorded = [node for node in nodes if node.id not in known and not (node.kind == "fleet" and recorded)]
        return TerminationResult(
            tuple(f"{node.kind} {node.id}" for node in unrecorded), (*nodes, *result.terminated), errors
        )

    def _empty_region(self, name: str, region: str, whose: ResourceFilter) -> list[str]:
        """Delete the resources found in one region and search again."""
        found = self.search(name, [region], whose).complete()
        if not found:
            return []
        self.context.emit(Note(f"found by tag: {', '.join(resource.id for resource in found)}"))
        self._release(name, found, ignore_wait)
        left = [
            f"{resource.kind} {resource.id} in {resource.region}"
            for resource in self.search(name, [region], whose).complete()
        ]
        if left:
            raise TeardownError(f"cluster {name} is not deleted: {'; '.join(left)}", left=left, hint=_repeat_hint(name))
        return [f"{resource.kind} {resource.id}" for resource in found]

    def _terminate(self, region: str, instance_ids: Sequence[str], on_wait: OnWait) -> None:
        if instance_ids:
            self.context.cloud.terminate(region, instance_ids, on_wait)

    def _release(self, name: str, found: Sequence[FoundResource], on_wait: OnWait) -> None:
        if not found:
            return
        try:
            self.context.cloud.release(found, on_wait)
        except TeardownError as err:
            # The AWS layer does not know which cloudgpu command continues the deletion.
            err.hint = _repeat_hint(name)
            raise

    def is_own(self, resource: TaggedResource, token: str) -> bool:
        """Return True if the resource has the cluster's token, the current owner's tag, or no owner tag.

        Checking the cluster's name is not enough, because other owners may use the same name.
        """
        return resource.tags.get(OWNER_TAG, "") in ("", self.context.owner) or (
            bool(token) and has_token(resource, token)
        )


class ShuttingDownError(TeardownError):
    """The nodes are still shutting down, so the resources that they use cannot be deleted yet."""


class ShutdownWait:
    """Reports the wait for the nodes of a cluster in one region. The largest types shut down for up to an hour.

    AWS does not bill an instance that is shutting down. The ledger therefore records the end of the costs as soon as
    all nodes are, because this command may be interrupted, and AWS lists a terminated instance for an hour only.
    """

    def __init__(self, context: CloudContext, name: str, region: str, instance_ids: Sequence[str]) -> None:
        self._context, self._name, self._region = context, name, region
        self._ids = tuple(instance_ids)
        self._activity = f"waiting for the nodes in {region} to terminate"
        self._reported = False

    def __enter__(self) -> "ShutdownWait":
        return self

    def __exit__(self, *_: object) -> None:
        if self._reported:
            self._context.emit(Activity(self._activity, finished=True))

    def __call__(self, _elapsed_s: float) -> None:
        """Report how many nodes have terminated, and once that they are not billed anymore."""
        states = self._states()
        if not states or any(state not in TERMINATING_STATES for state in states.values()):
            return
        if not self._reported:
            self._reported = True
            self._context.emit(
                Note(
                    f"{plural(len(self._ids), 'node')} in {self._region} {_is(self._ids)} shutting down and no longer "
                    "billed; large types take up to an hour, and the resources in use are deleted afterwards"
                )
            )
            self._record_ends()
        done = sum(state in TERMINATED_STATES for state in states.values())
        self._context.emit(Activity(self._activity, None, done, len(states), "nodes", limit_s=SHUTDOWN_S))

    def error(self) -> ShuttingDownError | None:
        """Return the error for a wait that took too long, or None if nodes are still billed or their states unknown."""
        states = self._states()
        left = [node for node, state in states.items() if state not in TERMINATED_STATES]
        if not left or any(states[node] not in TERMINATING_STATES for node in left):
            return None
        self._record_ends()
        nodes, again = plural(len(left), "node"), command("cloudgpu", "down", self._name)
        return ShuttingDownError(
            f"cluster {self._name} is not deleted yet: {nodes} in {self._region} {_is(left)} still shutting down "
            "and no longer billed, but the resources in use can be deleted only afterwards",
            left=[f"instance {node} in {self._region} is shutting down and not billed" for node in left],
            hint=f"run `{again}` later, for example in an hour",
        )

    def _states(self) -> Mapping[str, str]:
        try:
            return self._context.cloud.instance_states(self._region, self._ids)
        except CloudGpuError:
            return {}

    def _record_ends(self) -> None:
        ended = set(self._ids)
        rows = self._context.ledger.entries(cluster=self._name, state="open")
        record_node_ends(self._context, [row for row in rows if ended.issuperset(row.instance_ids)])


def _is(nodes: Sequence[str]) -> str:
    return "is" if len(nodes) == 1 else "are"


def _repeat_hint(name: str) -> str:
    return f"run `{command('cloudgpu', 'down', name)}` again to continue"


def has_token(resource: TaggedResource, token: str) -> bool:
    """Return True if the resource is tagged with the cluster's token."""
    return resource.tags.get(TOKEN_TAG, "") == token
