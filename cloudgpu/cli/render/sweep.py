"""What a sweep found and ended, as text and as JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from cloudgpu.app.clusters.delete_many import lines
from cloudgpu.app.sweep.cluster_resources import ClusterResources, SweepDecision
from cloudgpu.app.sweep.retained_resources import RetainedResource
from cloudgpu.app.sweep.sweep import SweepFindings, SweepResult
from cloudgpu.cli.terminal.figures import age, distance, moment, money, plural

_UNKNOWN = "unknown"
_NOUNS = {"elastic-ip": "elastic IP", "nat-gateway": "NAT gateway", "vpc": "VPC", "vpc-endpoint": "VPC endpoint"}


def sweep_json(seen: SweepFindings, swept: SweepResult, now: datetime, *, simulated: bool) -> dict[str, Any]:
    """The documented `sweep --json` form."""
    ended = {(one.label, one.token) for one in swept.ended}
    return {
        "simulated": simulated,
        "regions": list(seen.regions),
        "unknown": [{"region": region, "why": why} for region, why in seen.unknown],
        "unseen_storage": [{"region": region, "why": why} for region, why in seen.unseen],
        "clusters": [
            {**one.as_json(now), "goes": what.goes, "why": what.why, "ended": (one.label, one.token) in ended}
            for one, what in seen.clusters
        ],
        **{
            key: [
                {**one.as_json(now), "goes": what.goes, "why": what.why, "ended": (one.label, one.token) in ended}
                for one, what in seen.outliving
                if one.noun == noun
            ]
            for key, noun in (("storage", "storage"), ("images", "image"))
        },
        "left": [f"{one.label}: {line}" for one, err in swept.failed for line in lines(err)],
    }


def seen_lines(seen: SweepFindings, now: datetime, *, simulated: bool) -> list[str]:
    """One block a cluster, then what could not be asked."""
    where = plural(len(seen.regions), "region")
    found = plural(len(seen.clusters), "cluster") if seen.clusters else "nothing of any cluster"
    head = f"{found} in {where}{' (simulated)' if simulated else ''}"
    blocks = [line for one, what in seen.clusters for line in _block(one, what, now)]
    blocks += [line for one, what in seen.outliving for line in _outliving(one, what, now)]
    blocks += [f"storage and images in {region}: unknown: {why}" for region, why in seen.unseen]
    return [head, *blocks, *(f"{_place(region)}: unknown: {why}" for region, why in seen.unknown)]


def swept_lines(seen: SweepFindings, swept: SweepResult, *, yes: bool) -> list[str]:
    """What was ended; what was not is the error's to say."""
    if yes:
        return [f"ended {one.label}, confirmed by another search for its tags" for one in swept.ended]
    going = [*(one.label for one in seen.going), *(one.label for one in seen.storage_going)]
    if not going:
        return []
    counts = [(len(seen.going), "cluster"), (len(seen.storage_going), "piece of storage")]
    what = " and ".join(_counted(count, noun) for count, noun in counts if count)
    return [f"nothing was ended; --yes ends {what}: {', '.join(going)}"]


def _counted(count: int, noun: str) -> str:
    return plural(count, noun) if noun == "cluster" or count == 1 else f"{count} pieces of storage"


def _outliving(one: RetainedResource, what: SweepDecision, now: datetime) -> Iterator[str]:
    owner = f"of {one.owner}" if one.owner else "of nobody known"
    since = f"made {age((now - one.since).total_seconds())} ago" if one.since else "age unknown"
    size = "size unknown" if one.size_gib is None else f"{one.size_gib.quantize(Decimal(1))} GiB"
    most = "at most " if one.noun == "image" else ""
    yield f"{one.label}  {owner}; {one.kind} {one.id} in {one.region}"
    yield f"  {size}, {most}{_money(one.monthly_usd)} a month, {since}"
    yield f"  {'goes' if what.goes else 'stays'}: {what.why}"


def _block(one: ClusterResources, what: SweepDecision, now: datetime) -> Iterator[str]:
    owner = f"of {one.owner}" if one.owner else "of nobody known"
    team = f", team {one.team}" if one.team else ""
    expiry = (
        f"expires {moment(one.expires_at)}, {distance(one.expires_at, now)}" if one.expires_at else "expiry unknown"
    )
    if one.unreadable_expiry:
        expiry = f"expiry unreadable: {one.unreadable_expiry}{f'; {expiry}' if one.expires_at else ''}"
    since = f"since {age((now - one.since).total_seconds())}" if one.since else "age unknown"
    yield f"{one.cluster}  {owner + team}; {expiry}"
    if one.billed_in:
        yield f"  nothing in the cloud; its ledger rows in {_places(one.billed_in)} are open"
    else:
        yield f"  {_machines(one)} in {_places(one.regions)}, {since}"
        yield f"  {_costs(one)}"
    others = Counter(thing.kind for thing in one.things if thing.kind != "instance")
    if others:
        yield f"  and {', '.join(plural(count, _noun(kind)) for kind, count in sorted(others.items()))}"
    yield f"  {'goes' if what.goes else 'stays'}: {what.why}"


def _place(region: str) -> str:
    return "IAM" if region == "global" else region


def _places(regions: Sequence[str]) -> str:
    """IAM last: nobody's nodes are in it."""
    return " and ".join(_place(region) for region in sorted(regions, key=lambda region: region == "global"))


def _noun(kind: str) -> str:
    return _NOUNS.get(kind) or kind.replace("-", " ")


def _machines(one: ClusterResources) -> str:
    if not one.instances:
        return "no instances"
    kinds = Counter((thing.instance_type, thing.market) for thing in one.instances)
    return ", ".join(f"{count} x {kind} {market}" for (kind, market), count in sorted(kinds.items()))


def _costs(one: ClusterResources) -> str:
    more = f"{', '.join(f'{_noun(kind)}s' for kind in one.unpriced)} at prices unknown here" if one.unpriced else ""
    if one.hourly_usd == 0:
        return f"costs nothing but {more}" if more else "costs nothing"
    hourly, spent, monthly = (_money(usd) for usd in (one.hourly_usd, one.spent_usd, one.monthly_usd))
    return f"{hourly} an hour, {spent} so far, {monthly} a month if left{f', and {more}' if more else ''}"


def _money(usd: Decimal | None) -> str:
    return _UNKNOWN if usd is None else money(usd)
