"""Search for resources by cluster tag, delete them and search again, independently of any record."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from cloudgpu.aws.ec2.tagged_types import GLOBAL, OWNER_TAG, TOKEN_TAG, SearchResult
from cloudgpu.backends.aws.clusters.region_failures import RegionFailures
from cloudgpu.backends.aws.context import CloudContext
from cloudgpu.backends.tagged_resource import TaggedResource
from cloudgpu.errors import CloudGpuError, TeardownError
from cloudgpu.run.progress import Note
from cloudgpu.text import command
from cloudgpu.workers import Workers

NODE_KINDS = ("fleet", "instance")

ResourceFilter = Callable[[TaggedResource], bool]

_AT_ONCE = 8
"""Maximum number of regions processed at the same time."""


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
        for end in (partial(self._release, name, nodes), partial(self._terminate, region, missing)):
            try:
                end()
            except CloudGpuError as err:
                errors.setdefault(region, err)
        recorded = any(node.id in known for node in nodes)
        # Fleets are not recorded: a fleet counts as known if an instance found in the same search is known.
        unrecorded = [node for node in nodes if node.id not in known and not (node.kind == "fleet" and recorded)]
        return TerminationResult(
            tuple(f"{node.kind} {node.id}" for node in unrecorded), (*nodes, *result.terminated), errors
        )

    def _empty_region(self, name: str, region: str, whose: ResourceFilter) -> list[str]:
        """Delete the resources found in one region and search again.

        Raises:
            TeardownError: A resource could not be deleted, or the second search found resources.
            CloudGpuError: The region cannot be searched.
        """
        found = self.search(name, [region], whose).complete()
        if not found:
            return []
        self.context.emit(Note(f"found by tag: {', '.join(resource.id for resource in found)}"))
        self._release(name, found)
        left = [
            f"{resource.kind} {resource.id} in {resource.region}"
            for resource in self.search(name, [region], whose).complete()
        ]
        if left:
            raise TeardownError(f"cluster {name} is not deleted: {'; '.join(left)}", left=left, hint=_repeat_hint(name))
        return [f"{resource.kind} {resource.id}" for resource in found]

    def _terminate(self, region: str, instance_ids: Sequence[str]) -> None:
        if instance_ids:
            self.context.cloud.terminate(region, instance_ids)

    def _release(self, name: str, found: Sequence[TaggedResource]) -> None:
        if not found:
            return
        try:
            self.context.cloud.release(found)
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


def _repeat_hint(name: str) -> str:
    return f"run `{command('cloudgpu', 'down', name)}` again to continue"


def has_token(resource: TaggedResource, token: str) -> bool:
    """Return True if the resource is tagged with the cluster's token."""
    return resource.tags.get(TOKEN_TAG, "") == token
