"""Read the quota headroom of several regions concurrently, with a local cache.

Limits change only after a quota increase, so they are cached for ten minutes. Running vCPUs are counted on every
call. An unreadable cache file is treated as empty, and a failure to write the cache is ignored.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from cloudgpu.catalog.prices_and_quotas import Quota
from cloudgpu.clock import Clock
from cloudgpu.decoding import MALFORMED, decode_as
from cloudgpu.errors import CloudGpuError, NewerFormatError, StateError
from cloudgpu.paths import Home
from cloudgpu.plan.capacity import VcpuHeadroom
from cloudgpu.state.documents import StateFile
from cloudgpu.state.identifiers import BackendIdentity
from cloudgpu.workers import Workers

MAX_CACHE_AGE: Final = timedelta(minutes=10)
"""Maximum age of a cached limit."""
_AT_ONCE: Final = 16
_Identity = tuple[str, str]
"""Account and endpoint."""

HeadroomByQuota = Mapping[tuple[str, str], VcpuHeadroom]
"""(region, quota key) -> limit and usage."""


class QuotaCloud(BackendIdentity, Protocol):
    """The part of a backend that reads quotas."""

    def regions(self) -> Sequence[str]:
        """Return every region that the account can use."""

    def quota_limits(self, region: str) -> Mapping[str, int]:
        """Return the vCPU limit of each quota, by quota key."""

    def running_vcpus(self, region: str) -> Mapping[Quota, int | None]:
        """Map each quota to its running vCPUs, or to None if unknown. Quotas without running instances are omitted."""


@dataclass(frozen=True)
class RegionQuotas:
    """Quota limits and usage in one region. None means unknown. `trouble` lists the errors of failed requests."""

    region: str
    limits: Mapping[str, int] | None = None
    limits_at: datetime | None = None
    used: Mapping[str, int | None] | None = None
    """Quota key -> running vCPUs; a missing key means 0."""
    used_at: datetime | None = None
    trouble: tuple[str, ...] = field(default=(), compare=False)

    def room(self, key: str) -> VcpuHeadroom | None:
        """Return the headroom of one quota, or None if its limit is unknown."""
        if self.limits is None or key not in self.limits:
            return None
        used = None if self.used is None else self.used.get(key, 0)
        read_at = [at for at in (self.limits_at, self.used_at) if at is not None]
        return VcpuHeadroom(self.limits[key], used, min(read_at, default=None))


@dataclass(frozen=True)
class _Cache:
    """The content of the cache file. Regions are decoded separately, so that a damaged row affects no other row."""

    account: str
    endpoint: str
    regions: Mapping[str, Any]


QUOTAS: Final = StateFile("quota cache", _Cache)


class QuotaHeadroom:
    """Reads quotas and caches them in the state home."""

    def __init__(self, home: Home, clock: Clock) -> None:
        self._home = home
        self._clock = clock

    def asked(
        self, cloud: QuotaCloud, regions: Sequence[str] | None, *, anew: bool = False
    ) -> tuple[RegionQuotas, ...]:
        """Read the quotas of these regions concurrently.

        If `regions` is None, read every region that the account can use. With `anew`, ignore the cached limits.

        Returns:
            One entry per region. Values that could not be read are None.
        """
        regions = list(dict.fromkeys(cloud.regions() if regions is None else regions))
        identity = (cloud.account(), cloud.endpoint)
        cached = self._remembered(cloud.target, identity)
        with Workers(_AT_ONCE) as workers:
            known = [None if anew else cached.get(region) for region in regions]
            quotas = tuple(workers.map(lambda pair: self._region(cloud, *pair), zip(regions, known, strict=True)))
        merged = {region.region: _merged(region, cached) for region in quotas}
        self._write_cache(cloud.target, identity, {**cached, **merged})
        return quotas

    def cached(self, target: str, regions: Sequence[str] | None) -> tuple[RegionQuotas, ...]:
        """Return the cached quotas of these regions, or of every cached region if `regions` is None.

        The cached quotas may be of any age and from any account. The quotas of an uncached region are unknown.
        """
        cached = self._remembered(target, None)
        return tuple(
            cached.get(region, RegionQuotas(region)) for region in (sorted(cached) if regions is None else regions)
        )

    def forget(self, target: str) -> None:
        """Delete a target's cache. Call this method after the target's limits have changed."""
        with contextlib.suppress(OSError):
            self._home.catalog(target).quotas.unlink(missing_ok=True)

    def _region(self, cloud: QuotaCloud, region: str, known: RegionQuotas | None) -> RegionQuotas:
        trouble = []
        now = self._clock.now()
        quotas = RegionQuotas(region)
        if known is not None and known.limits_at is not None and timedelta(0) <= now - known.limits_at < MAX_CACHE_AGE:
            quotas = replace(quotas, limits=known.limits, limits_at=known.limits_at)
        else:
            try:
                quotas = replace(quotas, limits=cloud.quota_limits(region), limits_at=now)
            except CloudGpuError as err:
                trouble.append(err.message)
        try:
            counted = {quota.key: vcpus for quota, vcpus in cloud.running_vcpus(region).items()}
            quotas = replace(quotas, used=counted, used_at=now)
        except CloudGpuError as err:
            trouble.append(err.message)
        return replace(quotas, trouble=tuple(trouble))

    def _remembered(self, target: str, identity: _Identity | None) -> dict[str, RegionQuotas]:
        try:
            cache = QUOTAS.read(self._home.catalog(target).quotas)
        except (OSError, ValueError, NewerFormatError):
            return {}
        if identity is not None and (cache.account, cache.endpoint) != identity:
            return {}
        return dict(_readable(cache.regions))

    def _write_cache(self, target: str, identity: _Identity, regions: Mapping[str, RegionQuotas]) -> None:
        rows = {name: _row(quotas) for name, quotas in sorted(regions.items())}
        with contextlib.suppress(StateError):
            QUOTAS.write(self._home.catalog(target).quotas, _Cache(*identity, rows))


def headroom_by_quota(regions: Sequence[RegionQuotas]) -> HeadroomByQuota:
    """Return the headroom by region and quota for a plan; quotas with an unknown limit are omitted."""
    known = {(region.region, key): region.room(key) for region in regions for key in region.limits or ()}
    return {key: room for key, room in known.items() if room is not None}


def _merged(quotas: RegionQuotas, cache: Mapping[str, RegionQuotas]) -> RegionQuotas:
    """Replace values that could not be read with the cached values."""
    cached = cache.get(quotas.region, quotas)
    if quotas.limits is None:
        quotas = replace(quotas, limits=cached.limits, limits_at=cached.limits_at)
    if quotas.used is None:
        quotas = replace(quotas, used=cached.used, used_at=cached.used_at)
    return quotas


def _row(quotas: RegionQuotas) -> dict[str, Any]:
    return {
        "limits": quotas.limits,
        "limits_at": quotas.limits_at,
        "used": quotas.used,
        "used_at": quotas.used_at,
    }


def _readable(regions: Mapping[str, Any]) -> Iterator[tuple[str, RegionQuotas]]:
    """Yield the valid cache entries. A region with a damaged entry is read again."""
    for region, row in regions.items():
        with contextlib.suppress(*MALFORMED):
            yield region, _region_of(region, row)


def _region_of(region: str, row: Mapping[str, Any]) -> RegionQuotas:
    known = {name: row[name] for name in ("limits", "limits_at", "used", "used_at")}
    return decode_as(RegionQuotas, {"region": region, **known})
