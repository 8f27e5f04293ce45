"""Check quota headroom, and report what could not be queried."""

from collections.abc import Iterator

from cloudgpu.catalog.quotas import Quota, quota_of
from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.plan.quota_headroom import VcpuHeadroom
from cloudgpu.plan.reservations import is_reserved


@check("quota", "warning", "A launch fails if the new nodes and the running instances together exceed the quota.")
def quota_sufficient(case: CheckInput) -> Iterator[Issue]:
    """Report insufficient quota headroom, or a quota that could not be read."""
    catalog, quotes = case.question.catalog, case.question.quotes
    if not quotes.live and not quotes.quotas:
        return
    for candidate in case.field.candidates:
        if is_reserved(candidate.market):
            continue
        quota = quota_of(candidate.instance_type, candidate.market)
        needed = case.plan.nodes * catalog.types[candidate.instance_type].vcpus
        headroom = quotes.quotas.get((candidate.region, quota.key))
        since = headroom.since(live=quotes.live) if headroom else ""
        yield from _shortage(headroom, quota, candidate.region, needed, since)


def _shortage(headroom: VcpuHeadroom | None, quota: Quota, region: str, needed: int, since: str) -> Iterator[Issue]:
    if headroom is None:
        message = f"{quota} in {region}: the limit is unknown, and {needed} vCPUs are needed"
        yield Issue(message, f"see {quota.console(region)}", "unknown")
    elif headroom.free_vcpus is None:
        message = f"{quota} in {region}: {needed} of {headroom.limit_vcpus} vCPUs are needed, but the usage is unknown"
        yield Issue(message, severity="unknown")
    elif needed > headroom.free_vcpus:
        used = f"{headroom.used_vcpus} of {headroom.limit_vcpus} vCPUs are in use{since}"
        message = f"{quota} in {region}: {used}, but {needed} are needed"
        yield Issue(message, f"terminate running instances, or request a higher quota at {quota.console(region)}")


@check("offline", "unknown", "Checks that need the cloud never count as passed in an offline plan.")
def account_queried(case: CheckInput) -> Iterator[Issue]:
    """Report which account data was not queried for an offline plan."""
    quotes = case.question.quotes
    if quotes.live:
        return
    checked = quotes.survey.datasets
    in_s3 = any(data.name not in checked for data in case.question.recipe.data if data.source.startswith("s3://"))
    skipped = [
        "zones",
        "subnets",
        "machine images",
        *([] if quotes.quotas else ["quotas"]),
        *(["data in S3"] if in_s3 else []),
    ]
    yield Issue(f"planned offline, without querying {', '.join(skipped)}", "plan without --offline")


@check("zones", "unknown", "The catalog's zones may differ from this account's zones.")
def zones_queried(case: CheckInput) -> Iterator[Issue]:
    """Report regions whose zones could not be queried."""
    for region, why in case.question.quotes.zones_unknown.items():
        if any(candidate.region == region for candidate in case.field.candidates):
            yield Issue(f"cannot tell which zones of {region} offer the types, so the catalog's zones are tried: {why}")
