"""Check quota headroom, and report what could not be queried."""

from collections.abc import Iterator

from cloudgpu.catalog.quotas import Quota, quota_of
from cloudgpu.plan.checks.check import Case, Issue, check
from cloudgpu.plan.quota_room import QuotaRoom
from cloudgpu.plan.reservations import is_reserved


@check("quota", "warning", "A cluster that fits the quota can still fail because of what already runs.")
def quota_has_room(case: Case) -> Iterator[Issue]:
    """Report insufficient quota headroom, or a quota that could not be read."""
    catalog, quotes = case.question.catalog, case.question.quotes
    if not quotes.live and not quotes.quotas:
        return
    for one in case.field.candidates:
        if is_reserved(one.market):
            continue
        quota, needed = (
            quota_of(one.instance_type, one.market),
            case.plan.nodes * catalog.types[one.instance_type].vcpus,
        )
        room = quotes.quotas.get((one.region, quota.key))
        since = room.since(live=quotes.live) if room else ""
        yield from _room(room, quota, one.region, needed, since)


def _room(room: QuotaRoom | None, quota: Quota, region: str, needed: int, since: str) -> Iterator[Issue]:
    if room is None:
        message = f"{quota} in {region}: unknown, but {needed} vCPUs are needed"
        yield Issue(message, f"see {quota.console(region)}", "unknown")
    elif room.free_vcpus is None:
        message = f"{quota} in {region}: how much of {room.limit_vcpus} vCPUs is in use is unknown; {needed} are needed"
        yield Issue(message, severity="unknown")
    elif needed > room.free_vcpus:
        used = f"{room.used_vcpus} of {room.limit_vcpus} are in use{since}"
        message = f"{quota} in {region}: {used}, but {needed} vCPUs are needed"
        yield Issue(message, f"terminate running instances, or request a higher quota at {quota.console(region)}")


@check("offline", "unknown", "What was not queried never counts as passed.")
def asked_at_all(case: Case) -> Iterator[Issue]:
    """Report what an offline plan does not know about this account."""
    quotes = case.question.quotes
    if quotes.live:
        return
    looked = quotes.survey.datasets
    in_s3 = any(data.name not in looked for data in case.question.recipe.data if data.source.startswith("s3://"))
    unasked = ["zones", "machine images", *([] if quotes.quotas else ["quotas"]), *(["data in S3"] if in_s3 else [])]
    yield Issue(f"planned offline: {', '.join(unasked)} were not queried", "plan without --offline")


@check("zones", "unknown", "The catalog's zones may differ from those of this account.")
def zones_asked(case: Case) -> Iterator[Issue]:
    """Report regions whose zones could not be queried."""
    for region, why in case.question.quotes.zones_unknown.items():
        if any(one.region == region for one in case.field.candidates):
            yield Issue(f"cannot tell which zones of {region} offer the type, so the catalog's are tried: {why}")
