"""Query and change several regions of one account, and read the catalog data that each region offers.

A failure in one region does not affect the other regions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeVar

from cloudgpu.aws.ec2 import instances, machine_images, tag_search
from cloudgpu.aws.ec2.tagged_types import GLOBAL, SHUTDOWN_S, FoundResource, SearchResult
from cloudgpu.aws.pricing import offers, prices, quotas
from cloudgpu.aws.session.session import Session
from cloudgpu.backends.aws.ports import AccountClients
from cloudgpu.backends.catalog_source import CatalogSource
from cloudgpu.catalog.snapshot import TypeFacts
from cloudgpu.clock import Clock
from cloudgpu.engine.direct.operation_timeout import OnWait, WatchedClock, ignore_wait
from cloudgpu.errors import AuthError, CloudError, CloudGpuError, TeardownError, decisive_cause
from cloudgpu.workers import Workers

_T = TypeVar("_T")
SessionOf = Callable[[str], Session]
_MAX_PARALLEL: Final = 8
_ALTERNATIVES: Final[Mapping[str, tuple[str, ...]]] = {
    "cn": ("cn-north-1", "cn-northwest-1"),
    "us-gov": ("us-gov-west-1", "us-gov-east-1"),
    "": ("us-east-1", "us-west-2", "eu-west-1"),
}
"""Prefix of a partition's region names -> regions for account-wide queries that fail in the configured region."""


@dataclass(frozen=True)
class AwsCatalog(CatalogSource):
    """The instance types, prices, images and quotas that AWS or the rehearsal cloud reports."""

    cloud: AccountClients
    clock: Clock

    @property
    def target(self) -> str:
        """Target of the cloud, `aws` or `rehearsal`."""
        return self.cloud.target

    @property
    def endpoint(self) -> str:
        """ID that distinguishes this endpoint from other endpoints with the same account ID; empty for AWS."""
        return self.cloud.endpoint

    def account(self) -> str:
        """Return the account ID of the credentials in use."""
        return self.cloud.account()

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account."""
        return self.cloud.regions()

    def types(self, region: str) -> Mapping[str, TypeFacts]:
        """Return the instance types with NVIDIA GPUs in a region."""
        return instances.describe_gpu_types(self.cloud.clients(region))

    def zones(self, region: str) -> Mapping[str, tuple[str, ...]]:
        """Return the zones of a region that offer each GPU instance type, by instance type."""
        return offers.zones(self.cloud.clients(region))

    def on_demand(self, region: str) -> Mapping[str, Decimal]:
        """Return the on-demand price in USD per hour of every instance type in the region's price list."""
        return prices.on_demand(self.cloud.clients(region))

    def spot(self, region: str, types: Sequence[str]) -> Mapping[str, tuple[Decimal, Decimal]]:
        """Return the lowest and the highest spot price in USD per hour during the last day, by instance type."""
        return prices.spot(self.cloud.clients(region), types, self.clock.now())

    def images(self, region: str, parameters: Sequence[str]) -> Mapping[str, str]:
        """Return the machine image of each SSM parameter, omitting parameters that do not exist in the region."""
        images = machine_images.resolve_image_ids(self.cloud.clients, [(parameter, region) for parameter in parameters])
        if parameters and not images:
            message = f"cannot read any of the SSM parameters for machine images in {region}"
            raise CloudError(message, hint="check that your credentials have the permission ssm:GetParameter")
        return {parameter: image for (parameter, _), image in images.items()}

    def quotas(self, region: str) -> Mapping[str, int]:
        """Return the vCPU limit of each quota, by quota key."""
        return quotas.vcpu_limits(self.cloud.clients(region))


class AwsRegions:
    """The regions of one account.

    Args:
        session_of: Function that returns the API clients for a region.
        usual: The configured region, in which account-wide queries are tried first.
        clock: Clock for waiting.
    """

    def __init__(self, session_of: SessionOf, usual: str, clock: Clock) -> None:
        self._session_of = session_of
        self._usual = usual
        self._clock = clock

    def query_usual_region(self, query: Callable[[Session], _T]) -> _T:
        """Run an account-wide query in the configured region only."""
        return query(self._session_of(self._usual))

    def query_any_region(self, query: Callable[[Session], _T]) -> _T:
        """Run an account-wide query in the configured region and, if the query fails, in other regions."""
        try:
            return query(self._session_of(self._usual))
        except CloudError as err:
            if isinstance(err, AuthError) and not err.request_id:
                raise  # this machine has no usable credentials for any region
            for region in _alternatives(self._usual):
                try:
                    return query(self._session_of(region))
                except CloudError:
                    continue
            raise

    def names(self) -> tuple[str, ...]:
        """Return every region that the account can use."""
        return self.query_any_region(tag_search.enabled_regions)

    def search(self, cluster: str, regions: Sequence[str]) -> SearchResult:
        """Search these regions (`global`: IAM) for the cluster's tag, or for any cluster's tag if the name is empty.

        The result contains the error of a region that cannot be searched.
        """

        def search_one(region: str) -> SearchResult:
            try:
                if region == GLOBAL:
                    return tag_search.search_iam(self._session_of(self._usual), cluster)
                return tag_search.search_region(self._session_of(region), cluster)
            except CloudGpuError as err:
                return SearchResult(failures={region: err})

        result = SearchResult()
        for region_result in _in_parallel(search_one, tuple(dict.fromkeys(regions))):
            result = result.merged(region_result)
        return result

    def terminate(self, region: str, instance_ids: Sequence[str], on_wait: OnWait = ignore_wait) -> None:
        """Terminate instances by their IDs and wait until AWS confirms their termination.

        `on_wait` is called every few seconds with the seconds since the start.
        """
        instances.terminate(self._session_of(region), self._watched_clock(on_wait), instance_ids)

    def release(self, found: Sequence[FoundResource], on_wait: OnWait = ignore_wait) -> None:
        """Delete tagged resources in all regions in parallel and wait until AWS confirms their deletion.

        IAM resources are deleted last, when no region uses them anymore. `on_wait` is called every few seconds with the
        seconds since the start.
        """
        clock = self._watched_clock(on_wait)
        regional = [resource for resource in found if resource.region != GLOBAL]
        regions = sorted({resource.region for resource in regional})

        def work(region: str) -> CloudGpuError | None:
            return self._release_in(region, [resource for resource in regional if resource.region == region], clock)

        failures = [err for err in _in_parallel(work, regions) if err is not None]
        in_iam = [resource for resource in found if resource.region == GLOBAL]
        err = self._release_in(self._usual, in_iam, clock) if in_iam else None
        failures += [err] if err is not None else []
        if len(failures) == 1:
            raise failures[0]
        if failures:
            left = [line for err in failures for line in getattr(err, "left", (err.message,))]
            message = "; ".join(err.message for err in failures)
            raise TeardownError(message, left=left, hint="run the same command again") from decisive_cause(failures)

    def _watched_clock(self, on_wait: OnWait) -> WatchedClock:
        """Return a clock that also limits all waits of one deletion together."""
        limit_s, hint = SHUTDOWN_S, "run the same command again"
        return WatchedClock(self._clock, what="the deletion", on_wait=on_wait, timeout_s=limit_s, hint=hint)

    def _release_in(self, region: str, found: Sequence[FoundResource], clock: Clock) -> CloudGpuError | None:
        try:
            tag_search.release(self._session_of(region), found, clock)
        except CloudGpuError as err:
            return err
        return None


def _in_parallel(work: Callable[[str], _T], regions: Sequence[str]) -> list[_T]:
    """Call `work` for all regions in parallel, and return the results in the order of the regions.

    A single region is processed without a thread, so that Ctrl-C can interrupt the call.
    """
    if len(regions) <= 1:
        return [work(region) for region in regions]
    with Workers(min(_MAX_PARALLEL, len(regions)), "region") as pool:
        return list(pool.map(work, regions))


def _alternatives(region: str) -> list[str]:
    """Return regions in the same partition that can be queried instead of this region."""
    partition = next((prefix for prefix in _ALTERNATIVES if prefix and region.startswith(f"{prefix}-")), "")
    return [other for other in _ALTERNATIVES[partition] if other != region]
