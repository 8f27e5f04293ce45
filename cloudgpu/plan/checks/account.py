"""Check quotas and the keys, roles and networks of the account, and report what could not be queried."""

from collections.abc import Iterator

from cloudgpu.catalog.quotas import Quota, quota_of
from cloudgpu.plan.capacity import VcpuHeadroom, is_reserved
from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.plan.named_resources import SPOT_ROLE


@check("named", "error", "A missing key, role or network is reported before anything is launched.", on_hosts=False)
def named_resources_exist(case: CheckInput) -> Iterator[Issue]:
    """Report resources named in the settings that are missing or could not be checked."""
    survey = case.question.quotes.survey
    if survey.regions_unknown:
        yield Issue(f"cannot tell which regions the account has enabled: {survey.regions_unknown}", severity="unknown")
    for resource in survey.named:
        where = f" in {resource.region}" if resource.region else ""
        if resource.presence == "missing":
            fix = (
                f"correct the setting {resource.setting}: `cloudgpu config`"
                if resource.setting
                else f"create it, or specify another {resource.kind}"
            )
            yield Issue(f"{resource.kind} {resource.name} does not exist{where}", fix)
        elif resource.presence == "unknown":
            yield Issue(
                f"cannot tell whether {resource.kind} {resource.name} exists{where}: {resource.why}", severity="unknown"
            )


@check(
    "instance-profile",
    "error",
    "An instance profile that the caller may not use, or that allows too little, fails late.",
)
def instance_profile_usable(case: CheckInput) -> Iterator[Issue]:
    """Report an instance profile without a role, one that the caller may not pass, and what its role does not allow."""
    seen = case.question.quotes.survey.profile
    if seen is None:
        return
    if not seen.role:
        yield Issue("the instance profile has no role, so nodes get no credentials", "add a role to the profile")
        return
    allow = f"your identity needs iam:PassRole for role {seen.role} with iam:PassedToService ec2.amazonaws.com"
    if seen.may_pass is None:
        message = f"cannot tell whether you may launch nodes with role {seen.role}: {seen.why}"
        yield Issue(message, allow, severity="unknown")
    elif not seen.may_pass:
        yield Issue(f"you may not launch nodes with role {seen.role} ({seen.why})", allow)
    if seen.node_lacks is None:
        message = f"cannot tell whether role {seen.role} allows Session Manager"
        yield Issue(message, "it must allow the actions in docs/explanation/provisioning.md", severity="unknown")
    elif seen.node_lacks:
        yield Issue(f"role {seen.role} does not allow {', '.join(seen.node_lacks)}, which reach = ssm needs")


@check("role-permissions", "warning", "A denied IAM call makes every launch fail after the network has been created.")
def roles_can_be_made(case: CheckInput) -> Iterator[Issue]:
    """Report denied calls for the creation of a cluster's roles, if the policy simulator may be used."""
    denied = case.question.quotes.survey.denied_role_actions
    if denied:
        message = f"your policies deny {', '.join(denied)}, which create the roles of a cluster (IAM policy simulation)"
        fix = "set instance_profile, and expiry_schedule_role or expiry_schedule = false, to use existing roles"
        yield Issue(message, fix)


@check("tags", "error", "AWS rejects every launch with more tags than a resource can have.", on_hosts=False)
def tags_fit(case: CheckInput) -> Iterator[Issue]:
    """Report tags that are valid in the settings and in the recipe, but not together."""
    problem = case.question.quotes.survey.tags_problem
    if problem:
        yield Issue(f"the tags of the settings and the recipe: {problem}", "remove some of them")


@check("region-origin", "note", "A cluster in an unexpected region is far from its data, and other quotas apply.")
def region_origin(case: CheckInput) -> Iterator[Issue]:
    """Tell which setting or variable determines the region, if the recipe does not."""
    question, origin = case.question, case.question.quotes.survey.region_origin
    if origin is None or question.recipe.resources.regions or question.recipe.resources.zones:
        return
    if origin:
        yield Issue(f"region {question.default_region}: {origin}")
    else:
        fix = "set the region in the settings, in AWS_REGION or in your AWS profile, or use --region"
        yield Issue(f"region {question.default_region}: the default, because no setting names one", fix)


@check(
    "spot-role",
    "warning",
    "A spot launch needs a service-linked role, which not every identity may create.",
    on_hosts=False,
)
def spot_role_exists(case: CheckInput) -> Iterator[Issue]:
    """Report a missing service-linked role for spot. AWS creates it at the first launch, if the caller may do so."""
    survey = case.question.quotes.survey
    if "spot" not in case.question.markets:
        return
    if survey.service_roles_unknown:
        message = f"cannot tell whether the account has the role {SPOT_ROLE}: {survey.service_roles_unknown}"
        yield Issue(message, severity="unknown")
    elif survey.service_roles is not None and SPOT_ROLE not in survey.service_roles:
        message = f"the account has no role {SPOT_ROLE}: spot launches fail, unless your identity may create it"
        yield Issue(message, "run `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com` once")


@check(
    "quota",
    "warning",
    "A launch fails if the new nodes and the running instances together exceed the quota.",
    on_hosts=False,
)
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


@check("offline", "unknown", "Checks that need the cloud never count as passed in an offline plan.", on_hosts=False)
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


@check("zones", "unknown", "The catalog's zones may differ from this account's zones.", on_hosts=False)
def zones_queried(case: CheckInput) -> Iterator[Issue]:
    """Report regions whose zones could not be queried."""
    for region, why in case.question.quotes.zones_unknown.items():
        if any(candidate.region == region for candidate in case.field.candidates):
            yield Issue(f"cannot tell which zones of {region} offer the types, so the catalog's zones are tried: {why}")
