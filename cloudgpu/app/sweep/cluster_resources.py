"""What carries clusters' tags in an account, put together by cluster: whose it is, what it costs, what may go. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import groupby
from typing import Any, Final

from cloudgpu import bounds
from cloudgpu.app.clusters.tagged_resources import OWNER, TOKEN
from cloudgpu.backends.base import Tagged
from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.other_prices import MONTH_H, PricedThing, other_price
from cloudgpu.text import command

CLUSTER: Final = "cloudgpu:cluster"
_EXPIRES: Final = "cloudgpu:expires-at"
_KEPT: Final = "cloudgpu:storage"
"""Storage holds data and outlives clusters: no sweep touches it, whatever else it carries."""
_HOURS_A_MONTH: Final = 730
_EXACT: Final = Decimal("0.0001")
_GRACE: Final = timedelta(minutes=10)
"""The nodes' own timer and the schedule outside them come first."""
_RUNNING: Final = frozenset({"pending", "running"})
_NOT_KNOWN: Final = "yours, and not known to this home"
_BY_THE_HOUR: Final[Mapping[str, PricedThing]] = {
    "elastic-ip": "public_ipv4_hour_usd",
    "nat-gateway": "nat_gateway_hour_usd",
}
BILLED: Final = frozenset({"volume", *_BY_THE_HOUR})
"""Kinds beside instances that AWS charges for."""


@dataclass(frozen=True)
class ClusterResources:
    """One cluster as its tags tell of it.

    Attributes:
        expires_at: None where the tag is missing or cannot be read.
        since: When the oldest of it was launched or made; None where the cloud does not say.
        hourly_usd: What it costs an hour; None when the price of an instance is not known.
        spent_usd: What is left of it has cost until now; None likewise.
        unreadable_expiry: What an expiry tag says that is no time of this century; empty where there is none.
        unpriced: Kinds beside instances that cost money at prices that are not known here: they are in no sum.
        billed_in: Regions in which the ledger has it running, of a cluster of which nothing was found.
    """

    cluster: str
    token: str
    owner: str
    team: str
    run: str
    expires_at: datetime | None
    since: datetime | None
    things: tuple[Tagged, ...]
    hourly_usd: Decimal | None
    spent_usd: Decimal | None
    unpriced: tuple[str, ...]
    billed_in: tuple[str, ...] = ()
    unreadable_expiry: str = ""

    @property
    def label(self) -> str:
        """Its name."""
        return self.cluster

    @property
    def instances(self) -> tuple[Tagged, ...]:
        """Those that run, or are about to."""
        return tuple(one for one in self.things if one.kind == "instance" and one.state in _RUNNING)

    @property
    def regions(self) -> tuple[str, ...]:
        """Where it has something; `global` for IAM."""
        return tuple(sorted({*self.billed_in, *(one.region for one in self.things)}))

    @property
    def monthly_usd(self) -> Decimal | None:
        """What a month more of it costs, of what has a known price."""
        return None if self.hourly_usd is None else self.hourly_usd * _HOURS_A_MONTH

    def expired(self, now: datetime) -> bool:
        """Whether it should be gone by itself for some minutes."""
        return self.expires_at is not None and self.expires_at + _GRACE <= now

    def as_json(self, now: datetime) -> dict[str, Any]:
        """The documented row of `sweep --json`."""
        return {
            "cluster": self.cluster,
            "owner": self.owner or None,
            "team": self.team,
            "run_id": self.run,
            "regions": list(self.regions),
            "expires_at": self.expires_at.isoformat() if self.expires_at else None,
            "expired": self.expired(now),
            "unreadable_expiry": self.unreadable_expiry or None,
            "age_s": round((now - self.since).total_seconds()) if self.since else None,
            "instances": [
                {
                    "id": one.id,
                    "instance_type": one.instance_type,
                    "market": one.market,
                    "region": one.region,
                    "state": one.state,
                }
                for one in self.instances
            ],
            "things": dict(sorted(Counter(one.kind for one in self.things).items())),
            "hourly_usd": _text(self.hourly_usd),
            "spent_usd": _text(self.spent_usd),
            "monthly_usd": _text(self.monthly_usd),
            "unpriced": list(self.unpriced),
            "only_in_ledger": bool(self.billed_in),
        }


@dataclass(frozen=True)
class SweepRequest:
    """Who sweeps, and what may go beside what has expired.

    Attributes:
        owners: Those whose clusters may go, asked for by name; then no other cluster is looked at.
        all_mine: Also what this home knows to be up.
    """

    caller: str
    owners: frozenset[str] = frozenset()
    all_mine: bool = False


@dataclass(frozen=True)
class Here:
    """What this home knows of a cluster: of this very one, not of another one of the same name.

    Attributes:
        known: It has a record of it.
        up: That record says that it is up.
        busy: Another command of this home is at a cluster of this name.
    """

    known: bool = False
    up: bool = False
    busy: bool = False


@dataclass(frozen=True)
class Verdict:
    """Whether it may go, and why or why not."""

    goes: bool
    why: str


def grouped(found: Iterable[Tagged], catalog: Catalog, now: datetime) -> tuple[ClusterResources, ...]:
    """By cluster, those that cost most first."""

    def key(one: Tagged) -> tuple[str, str]:
        return one.tags[CLUSTER], one.tags.get(TOKEN, "")

    own = sorted((one for one in found if CLUSTER in one.tags and _KEPT not in one.tags), key=key)
    remains = [_remains(name, token, tuple(things), catalog, now) for (name, token), things in groupby(own, key=key)]
    return tuple(sorted(remains, key=lambda one: (-(one.hourly_usd or Decimal(0)), one.cluster, one.token)))


def verdict(one: ClusterResources, here: Here, request: SweepRequest, now: datetime) -> Verdict:
    """Whether it may go, as this home and who asks have it. The first rule that holds decides."""
    by_owner = command("--owner", one.owner)
    rules = (
        (here.busy, False, "another command is at it just now"),
        (bool(one.owner) and one.owner in request.owners, True, f"{one.owner}'s, as asked"),
        (one.expired(now), True, "past its expiry"),
        (not one.owner, False, "nobody known owns it; removed once it has expired"),
        (one.owner != request.caller, False, f"{one.owner}'s and not past its expiry; {by_owner} removes it"),
        (here.up and not request.all_mine, False, "yours, up and not past its expiry; --all-mine removes it too"),
        (here.known, True, "yours"),
    )
    return next((Verdict(goes, why) for holds, goes, why in rules if holds), Verdict(goes=True, why=_NOT_KNOWN))


def _remains(name: str, token: str, things: tuple[Tagged, ...], catalog: Catalog, now: datetime) -> ClusterResources:
    tags = next((one.tags for one in things if one.kind == "instance"), things[0].tags)
    living = [one for one in things if one.kind == "instance" and one.state in _RUNNING]
    since = min((one.since for one in things if one.since is not None), default=None)
    beside = [(one, _beside(one)) for one in things if one.kind in BILLED]
    prices = [
        *((one.since, _price(one, catalog)) for one in living),
        # An address has no age of its own: it was made with the rest.
        *((one.since or since, price) for one, price in beside if price is not None),
    ]
    return ClusterResources(
        cluster=name,
        token=token,
        owner=tags.get(OWNER, ""),
        team=tags.get("cloudgpu:team", ""),
        run=tags.get("cloudgpu:run", ""),
        expires_at=_expiry(things),
        unreadable_expiry=_unreadable_expiry(things),
        since=since,
        things=things,
        hourly_usd=_sum([price for _, price in prices]),
        spent_usd=_sum([_spent(begun, price, now) for begun, price in prices]),
        unpriced=tuple(sorted({one.kind for one, price in beside if price is None})),
    )


def _expiry(things: Sequence[Tagged]) -> datetime | None:
    """The latest that anything of it says: an extension that was broken off has moved only some of them."""
    moments = [_utc(one.tags) for one in things]
    return max((at for at in moments if at is not None), default=None)


def _utc(tags: Mapping[str, str]) -> datetime | None:
    try:
        return bounds.tag_moment(tags.get(_EXPIRES, ""))
    except ValueError:
        return None


def _unreadable_expiry(things: Sequence[Tagged]) -> str:
    """Return the first expiry tag that names no time; empty where all that are there can be read."""
    return next((one.tags[_EXPIRES] for one in things if one.tags.get(_EXPIRES) and _utc(one.tags) is None), "")


def _price(one: Tagged, catalog: Catalog) -> Decimal | None:
    """USD an hour by the catalogue; nobody knows today's spot price without asking for it."""
    kind = catalog.types.get(one.instance_type)
    return kind.on_demand_usd.get(one.region) if kind is not None and one.market == "on-demand" else None


def _beside(one: Tagged) -> Decimal | None:
    """USD an hour of what is no instance, by the list price of its region; None where that is not known."""
    if one.kind != "volume":
        found = other_price(_BY_THE_HOUR[one.kind], one.region)
        return found.usd if found else None
    found = other_price("gp3_gib_month_usd", one.region) if one.volume_type == "gp3" else None
    if found is None or one.size_gib is None:
        return None
    return (found.usd * one.size_gib / MONTH_H).quantize(_EXACT)


def _spent(begun: datetime | None, price: Decimal | None, now: datetime) -> Decimal | None:
    if price is None or begun is None:
        return None
    hours = Decimal(str(max(0.0, (now - begun).total_seconds()))) / 3600
    return (price * hours).quantize(Decimal("0.01"))


def _sum(figures: Sequence[Decimal | None]) -> Decimal | None:
    known = [one for one in figures if one is not None]
    return sum(known, Decimal(0)) if len(known) == len(figures) else None


def _text(usd: Decimal | None) -> str | None:
    return None if usd is None else str(usd)
