"""How much the account's quotas leave, in several regions at once; what was told is kept, with its age.

Limits change when a person asks for more, so an answer of some minutes ago will do; what runs is counted each time.
The file is only ever a memory: one that cannot be read is an empty one, and one that cannot be written stops nobody.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from cloudgpu import files
from cloudgpu.catalog.quotas import Quota
from cloudgpu.clock import Clock
from cloudgpu.decoding import MALFORMED, decoded
from cloudgpu.errors import CloudGpuError, StateError
from cloudgpu.paths import Home
from cloudgpu.plan.quota_room import QuotaRoom
from cloudgpu.state.identity import BackendIdentity
from cloudgpu.state.records import write_durably

FRESH: Final = timedelta(minutes=10)
"""For how long a limit is not asked for again."""
_AT_ONCE: Final = 16

Rooms = Mapping[tuple[str, str], QuotaRoom]
"""(region, quota code) -> what may run there and what runs."""


class QuotaCloud(BackendIdentity, Protocol):
    """What tells of quotas."""

    def regions(self) -> Sequence[str]:
        """Every region that the account can use."""

    def quota_limits(self, region: str) -> Mapping[str, int]:
        """Key of a quota -> vCPUs that may run."""

    def running_vcpus(self, region: str) -> Mapping[Quota, int | None]:
        """VCPUs that run now by quota; a quota of which nothing runs is left out."""


@dataclass(frozen=True)
class RegionQuotas:
    """What one region told. `None` is unknown, and `trouble` says why."""

    region: str
    limits: Mapping[str, int] | None = None
    limits_at: datetime | None = None
    used: Mapping[str, int | None] | None = None
    """Key of a quota -> vCPUs that run; one that is left out has none."""
    used_at: datetime | None = None
    trouble: tuple[str, ...] = field(default=(), compare=False)

    def room(self, key: str) -> QuotaRoom | None:
        """What is known of one quota; None where its limit is unknown."""
        if self.limits is None or key not in self.limits:
            return None
        used = None if self.used is None else self.used.get(key, 0)
        told = [at for at in (self.limits_at, self.used_at) if at is not None]
        return QuotaRoom(self.limits[key], used, min(told, default=None))


class QuotaHeadroom:
    """Quotas of one home."""

    def __init__(self, home: Home, clock: Clock) -> None:
        self._home = home
        self._clock = clock

    def asked(
        self, cloud: QuotaCloud, regions: Sequence[str] | None, *, anew: bool = False
    ) -> tuple[RegionQuotas, ...]:
        """What the regions tell, None for all that the account can use, asked at once; `anew` trusts no memory.

        What they refuse to tell is unknown.

        Raises:
            CloudGpuError: It is not known whose quotas these are, or which regions there are.
        """
        regions = list(dict.fromkeys(cloud.regions() if regions is None else regions))
        whose = {"account": cloud.account(), "endpoint": cloud.endpoint}
        memory = self._remembered(cloud.target, whose)
        with ThreadPoolExecutor(_AT_ONCE) as workers:
            known = [None if anew else memory.get(region) for region in regions]
            found = tuple(workers.map(lambda one: self._region(cloud, *one), zip(regions, known, strict=True)))
        self._keep(cloud.target, whose, {**memory, **{one.region: _kept(one, memory) for one in found}})
        return found

    def remembered(self, target: str, regions: Sequence[str] | None) -> tuple[RegionQuotas, ...]:
        """What was told last, None for every region that ever was asked, however old and to whichever account.

        Unknown where nobody ever asked.
        """
        memory = self._remembered(target, None)
        return tuple(
            memory.get(region, RegionQuotas(region)) for region in (sorted(memory) if regions is None else regions)
        )

    def forget(self, target: str) -> None:
        """Remember nothing of a target any more, for whoever knows that its limits were changed just now."""
        with contextlib.suppress(OSError):
            self._home.catalog(target).quotas.unlink(missing_ok=True)

    def _region(self, cloud: QuotaCloud, region: str, known: RegionQuotas | None) -> RegionQuotas:
        trouble = []
        now = self._clock.now()
        found = RegionQuotas(region)
        if known is not None and known.limits_at is not None and timedelta(0) <= now - known.limits_at < FRESH:
            found = replace(found, limits=known.limits, limits_at=known.limits_at)
        else:
            try:
                found = replace(found, limits=cloud.quota_limits(region), limits_at=now)
            except CloudGpuError as err:
                trouble.append(err.message)
        try:
            counted = {quota.key: vcpus for quota, vcpus in cloud.running_vcpus(region).items()}
            found = replace(found, used=counted, used_at=now)
        except CloudGpuError as err:
            trouble.append(err.message)
        return replace(found, trouble=tuple(trouble))

    def _remembered(self, target: str, whose: Mapping[str, str] | None) -> dict[str, RegionQuotas]:
        try:
            stored = files.read_json(self._home.catalog(target).quotas)
            if whose is not None and {name: stored[name] for name in whose} != whose:
                return {}
            return dict(_readable(stored["regions"]))
        except (OSError, *MALFORMED):
            return {}

    def _keep(self, target: str, whose: Mapping[str, str], regions: Mapping[str, RegionQuotas]) -> None:
        rows = {name: _row(one) for name, one in sorted(regions.items())}
        with contextlib.suppress(StateError):
            text = json.dumps({**whose, "regions": rows}, indent=1) + "\n"
            write_durably(self._home.catalog(target).quotas, text)


def rooms(found: Sequence[RegionQuotas]) -> Rooms:
    """What a plan needs of it; a quota whose limit nobody told is left out, so that it counts as unknown."""
    told = {(one.region, key): one.room(key) for one in found for key in one.limits or ()}
    return {place: room for place, room in told.items() if room is not None}


def _kept(found: RegionQuotas, memory: Mapping[str, RegionQuotas]) -> RegionQuotas:
    """With what was told before of what was not told now."""
    old = memory.get(found.region, found)
    if found.limits is None:
        found = replace(found, limits=old.limits, limits_at=old.limits_at)
    if found.used is None:
        found = replace(found, used=old.used, used_at=old.used_at)
    return found


def _row(one: RegionQuotas) -> dict[str, Any]:
    return {
        "limits": one.limits,
        "limits_at": one.limits_at.isoformat() if one.limits_at else None,
        "used": one.used,
        "used_at": one.used_at.isoformat() if one.used_at else None,
    }


def _readable(regions: Mapping[str, Any]) -> Iterator[tuple[str, RegionQuotas]]:
    """Yield the regions whose memory can be read: a damaged one is asked again."""
    for region, row in regions.items():
        with contextlib.suppress(*MALFORMED):
            yield region, _region_of(region, row)


def _region_of(region: str, row: Mapping[str, Any]) -> RegionQuotas:
    known = {name: row[name] for name in ("limits", "limits_at", "used", "used_at")}
    return decoded(RegionQuotas, {"region": region, **known})
