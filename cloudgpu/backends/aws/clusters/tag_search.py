"""Search for the resources of a cluster by tag, terminate its nodes, and delete what a search finds."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from cloudgpu.aws.ec2.tagging import (
    SHUTDOWN_S,
    TERMINATED_STATES,
    TERMINATING_STATES,
    SearchResult,
)
from cloudgpu.backends.aws.account import CloudContext
from cloudgpu.backends.aws.clusters.ledger_rows import record_node_ends
from cloudgpu.cloud import GLOBAL, OWNER_TAG, TOKEN_TAG, TaggedResource
from cloudgpu.engine.direct.deployment import OnWait, ignore_wait
from cloudgpu.errors import CloudGpuError, TeardownError
from cloudgpu.run.progress import Activity, Note
from cloudgpu.text import command, plural
from cloudgpu.workers import Workers

NODE_KINDS = ("fleet", "instance")
ResourceFilter = Callable[[TaggedResource], bool]
Whose = Literal["token", "owner", "token or owner"]
"""Which of the resources tagged with a cluster's name are meant: those with the cluster's token, those of the current
owner or without an owner, or both. The name is not enough, because other owners may use the same name."""
_AT_ONCE = 8
"""Maximum number of regions processed at the same time."""
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d+")
_SHORT_REGION = re.compile(
    r"(?P<area>[a-z]{2})(?P<gov>gov)?(?P<north>[nsc])?(?P<east>[ew])?(?P<number>\d+)"  # as `role_name` shortens it
)
_DIRECTIONS = {"n": "north", "s": "south", "c": "central", "e": "east", "w": "west"}


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
        return only(whose, self.context.cloud.search_each(name, regions))

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

    def empty_region(self, name: str, region: str, whose: ResourceFilter) -> list[str]:
        """Delete the resources that a search finds in one region, and search again. Return the deleted resources."""
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

    def _release(self, name: str, found: Sequence[TaggedResource], on_wait: OnWait) -> None:
        if not found:
            return
        try:
            self.context.cloud.release(found, on_wait)
        except TeardownError as err:
            # The AWS layer does not know which cloudgpu command continues the deletion.
            err.hint = _repeat_hint(name)
            raise


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
        with suppress(CloudGpuError):  # closing the rows records the ends again, unless this command is interrupted
            rows = self._context.ledger.entries(cluster=self._name, state="open")
            record_node_ends(self._context, [row for row in rows if ended.issuperset(row.instance_ids)])


def _is(nodes: Sequence[str]) -> str:
    return "is" if len(nodes) == 1 else "are"


def _repeat_hint(name: str) -> str:
    return f"run `{command('cloudgpu', 'down', name)}` again to continue"


def resource_filter(whose: Whose, token: str, owner: str) -> ResourceFilter:
    """Return a filter for the resources of a cluster with this token, or of this owner."""

    def matches(resource: TaggedResource) -> bool:
        has_token = resource.tags.get(TOKEN_TAG, "") == token
        is_owned = resource.tags.get(OWNER_TAG, "") in ("", owner)
        if whose == "token or owner":
            return is_owned or (bool(token) and has_token)
        return has_token if whose == "token" else is_owned

    return matches


def region_of(resource: TaggedResource, cluster: str) -> str:
    """Return the region of a cluster's resource; for IAM, the region in its name. Empty if the name contains none.

    The role of the expiry schedules contains a shortened region, for example `use1`.
    """
    if resource.region != GLOBAL:
        return resource.region
    text = resource.id.removeprefix(f"cloudgpu-{cluster}-").removesuffix("-belt")
    if _REGION.fullmatch(text):
        return text
    short = _SHORT_REGION.fullmatch(text)
    if short is None or not (short["north"] or short["east"]):
        return ""
    direction = "".join(_DIRECTIONS[letter] for letter in (short["north"], short["east"]) if letter)
    return "-".join(part for part in (short["area"], short["gov"], direction, short["number"]) if part)


def only(whose: ResourceFilter, result: SearchResult) -> SearchResult:
    """Return the result of a search without the resources that do not match `whose`."""
    return SearchResult(tuple(filter(whose, result.found)), result.failures, tuple(filter(whose, result.terminated)))
