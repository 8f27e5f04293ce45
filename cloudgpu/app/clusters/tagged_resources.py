"""What carries a cluster's tag, whatever any record says: searched for, ended, and searched for again."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from cloudgpu.app.clusters.region_failures import RegionFailures
from cloudgpu.aws.ec2.tagged_types import GLOBAL, SearchResult
from cloudgpu.backends.base import TaggedResource
from cloudgpu.backends.context import CloudContext
from cloudgpu.errors import CloudGpuError, TeardownError
from cloudgpu.run.progress import Note
from cloudgpu.text import command

OWNER = "cloudgpu:owner"
TOKEN = "cloudgpu:token"  # noqa: S105  the name of a tag
NODE_KINDS = ("fleet", "instance")

Whose = Callable[[TaggedResource], bool]

_AT_ONCE = 8
"""Regions handled at the same time."""


@dataclass(frozen=True)
class Recorded:
    """The instances of a cluster as its record has them: they are ended whether or not a search finds them."""

    region: str = ""
    instance_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodesEnded:
    """What a search found and what was ended of it.

    Attributes:
        ended: `instance i-0abc` of each thing that was ended.
        seen: Nodes that were found, running or terminated.
        errors: Region -> why it is not confirmed empty.
    """

    ended: tuple[str, ...] = ()
    seen: tuple[TaggedResource, ...] = ()
    errors: Mapping[str, CloudGpuError] = field(default_factory=dict)


@dataclass(frozen=True)
class TagSearch:
    """Search for resources by cluster tag."""

    context: CloudContext

    def search(self, name: str, regions: Sequence[str], whose: Whose) -> SearchResult:
        """Search these regions (`global`: IAM) for what carries the cluster's tag and is whose it should be."""
        result = self.context.cloud.search_each(name, regions)
        return SearchResult(
            tuple(one for one in result.found if whose(one)),
            result.failures,
            tuple(one for one in result.terminated if whose(one)),
        )

    def end_nodes(self, name: str, regions: Sequence[str], whose: Whose, recorded: Recorded) -> NodesEnded:
        """End the nodes first, in all regions at once: a region that fails or hangs delays no other one.

        A journal that lost their row would wait for what they stand on. `ended` leaves out recorded instances.
        """

        def work(region: str) -> NodesEnded:
            known = recorded.instance_ids if region == recorded.region else ()
            return self._end_nodes_in(name, region, whose, known)

        if len(regions) == 1:
            return work(regions[0])  # without a thread, so that Ctrl-C interrupts it
        with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(regions))), thread_name_prefix="nodes") as pool:
            done = list(pool.map(work, regions))
        return NodesEnded(
            tuple(line for one in done for line in one.ended),
            tuple(node for one in done for node in one.seen),
            {region: err for one in done for region, err in one.errors.items()},
        )

    def end_rest(self, name: str, regions: Sequence[str], whose: Whose, failures: RegionFailures) -> tuple[str, ...]:
        """Delete what the search still finds and search again, region by region; return what was found.

        A region that failed before is left out: another search would only wait for it again. IAM (`global`) comes
        last and only once every region is empty, since the schedules that end nodes elsewhere need their role.
        """
        ended: list[str] = []
        for region in sorted(regions, key=lambda one: one == GLOBAL):
            if region in failures or (region == GLOBAL and failures):
                continue
            with failures.guard(region):
                ended += self._emptied(name, region, whose)
        return tuple(ended)

    def _end_nodes_in(self, name: str, region: str, whose: Whose, known: Sequence[str]) -> NodesEnded:
        result = self.search(name, [region], whose)
        errors = dict(result.failures)
        nodes = [one for one in result.found if one.kind in NODE_KINDS]
        missing = sorted(set(known) - {one.id for one in nodes})
        for end in (partial(self._release, name, nodes), partial(self._terminate, region, missing)):
            try:
                end()
            except CloudGpuError as err:
                errors.setdefault(region, err)
        recorded = any(one.id in known for one in nodes)
        # Fleets stand in no record: one is known when an instance that was found with it is.
        strays = [one for one in nodes if one.id not in known and not (one.kind == "fleet" and recorded)]
        return NodesEnded(tuple(f"{one.kind} {one.id}" for one in strays), (*nodes, *result.terminated), errors)

    def _emptied(self, name: str, region: str, whose: Whose) -> list[str]:
        """Delete what is found in one region and search again.

        Raises:
            TeardownError: The second search is not empty.
            CloudGpuError: The region cannot be searched.
        """
        found = self.search(name, [region], whose).complete()
        if not found:
            return []
        self.context.emit(Note(f"found by tag: {', '.join(thing.id for thing in found)}"))
        self._release(name, found)
        left = [f"{thing.kind} {thing.id} in {thing.region}" for thing in self.search(name, [region], whose).complete()]
        if left:
            raise TeardownError(f"cluster {name} is not gone: {'; '.join(left)}", left=left, hint=_again(name))
        return [f"{thing.kind} {thing.id}" for thing in found]

    def _terminate(self, region: str, instance_ids: Sequence[str]) -> None:
        if instance_ids:
            self.context.cloud.terminate(region, instance_ids)

    def _release(self, name: str, found: Sequence[TaggedResource]) -> None:
        if not found:
            return
        try:
            self.context.cloud.release(found)
        except TeardownError as err:
            # AWS does not know which of our commands goes on with it.
            err.hint = _again(name)
            raise

    def mine(self, one: TaggedResource, token: str) -> bool:
        """Of this cluster, or of this owner: another person's cluster of the same name is not ours to end."""
        return one.tags.get(OWNER, "") in ("", self.context.owner) or (bool(token) and has_token(one, token))


def _again(name: str) -> str:
    return f"run again, it goes on where it stopped: {command('cloudgpu', 'down', name)}"


def has_token(one: TaggedResource, token: str) -> bool:
    """Whether it was made by the calls of this very cluster."""
    return one.tags.get(TOKEN, "") == token
