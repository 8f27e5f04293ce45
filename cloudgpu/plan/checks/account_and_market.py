"""Check the account, quotas, capacity and reservation terms, and that the cost and the expiry fit the budget."""

from collections.abc import Iterator
from datetime import timedelta

from cloudgpu.catalog.prices_and_quotas import Quota, quota_of
from cloudgpu.plan.capacity import VcpuHeadroom, is_reserved, reservation_notes
from cloudgpu.plan.checks.check import CheckContext, Issue, check
from cloudgpu.plan.named_resources import SPOT_ROLE
from cloudgpu.plan.plan import breakdown, longest_expiry_within, unpriced_suffix
from cloudgpu.recipe.field_types import DurationS
from cloudgpu.text import command, plural

PRICES_STALE = timedelta(days=30)
SHORTEST_RUN_S = 600
"""Shortest useful expiry: with less than ten minutes, nodes terminate before they start work."""
_MINUTE_S = 60
_NOTICE_S = 120
"""Spot notice, in seconds: EC2 announces an interruption at most two minutes in advance."""
_HEADWAY_S = 10
"""Margin, in seconds, for the polling delay: agents check for the notice every five seconds."""


@check("named", "error", "A missing key, role or network is reported before anything is launched.", on_hosts=False)
def named_resources_exist(context: CheckContext) -> Iterator[Issue]:
    """Report resources named in the settings that are missing or could not be checked."""
    lookups = context.inputs.quotes.lookups
    if lookups.regions_unknown:
        yield Issue(f"cannot tell which regions the account has enabled: {lookups.regions_unknown}", severity="unknown")
    for resource in lookups.named:
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
def instance_profile_usable(context: CheckContext) -> Iterator[Issue]:
    """Report an instance profile without a role, one that the caller may not pass, and what its role does not allow."""
    seen = context.inputs.quotes.lookups.profile
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
def roles_can_be_made(context: CheckContext) -> Iterator[Issue]:
    """Report denied calls for the creation of a cluster's roles, if the policy simulator may be used."""
    denied = context.inputs.quotes.lookups.denied_role_actions
    if denied:
        message = f"your policies deny {', '.join(denied)}, which create the roles of a cluster (IAM policy simulation)"
        fix = "set instance_profile, and expiry_schedule_role or expiry_schedule = false, to use existing roles"
        yield Issue(message, fix)


@check("tags", "error", "AWS rejects every launch with more tags than a resource can have.", on_hosts=False)
def tags_fit(context: CheckContext) -> Iterator[Issue]:
    """Report tags that are valid in the settings and in the recipe, but not together."""
    problem = context.inputs.quotes.lookups.tags_problem
    if problem:
        yield Issue(f"the tags of the settings and the recipe: {problem}", "remove some of them")


@check("region-origin", "note", "A cluster in an unexpected region is far from its data, and other quotas apply.")
def region_origin(context: CheckContext) -> Iterator[Issue]:
    """Tell which setting or variable determines the region, if the recipe does not."""
    inputs, origin = context.inputs, context.inputs.quotes.lookups.region_origin
    if origin is None or inputs.recipe.resources.regions or inputs.recipe.resources.zones:
        return
    if origin:
        yield Issue(f"region {inputs.default_region}: {origin}")
    else:
        fix = "set the region in the settings, in AWS_REGION or in your AWS profile, or use --region"
        yield Issue(f"region {inputs.default_region}: the default, because no setting names one", fix)


@check(
    "spot-role",
    "warning",
    "A spot launch needs a service-linked role, which not every identity may create.",
    on_hosts=False,
)
def spot_role_exists(context: CheckContext) -> Iterator[Issue]:
    """Report a missing service-linked role for spot. AWS creates it at the first launch, if the caller may do so."""
    lookups = context.inputs.quotes.lookups
    if "spot" not in context.inputs.markets:
        return
    if lookups.service_roles_unknown:
        message = f"cannot tell whether the account has the role {SPOT_ROLE}: {lookups.service_roles_unknown}"
        yield Issue(message, severity="unknown")
    elif lookups.service_roles is not None and SPOT_ROLE not in lookups.service_roles:
        message = f"the account has no role {SPOT_ROLE}: spot launches fail, unless your identity may create it"
        yield Issue(message, "run `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com` once")


@check(
    "quota",
    "warning",
    "A launch fails if the new nodes and the running instances together exceed the quota.",
    on_hosts=False,
)
def quota_sufficient(context: CheckContext) -> Iterator[Issue]:
    """Report insufficient quota headroom, or a quota that could not be read."""
    catalog, quotes = context.inputs.catalog, context.inputs.quotes
    if not quotes.live and not quotes.quotas:
        return
    for candidate in context.candidate_list.candidates:
        if is_reserved(candidate.market):
            continue
        quota = quota_of(candidate.instance_type, candidate.market)
        needed = context.plan.nodes * catalog.types[candidate.instance_type].vcpus
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
def account_queried(context: CheckContext) -> Iterator[Issue]:
    """Report which account data was not queried for an offline plan."""
    quotes = context.inputs.quotes
    if quotes.live:
        return
    checked = quotes.lookups.datasets
    in_s3 = any(data.name not in checked for data in context.inputs.recipe.data if data.source.startswith("s3://"))
    skipped = [
        "zones",
        "subnets",
        "machine images",
        *([] if quotes.quotas else ["quotas"]),
        *(["data in S3"] if in_s3 else []),
    ]
    yield Issue(f"planned offline, without querying {', '.join(skipped)}", "plan without --offline")


@check("zones", "unknown", "The catalog's zones may differ from this account's zones.", on_hosts=False)
def zones_queried(context: CheckContext) -> Iterator[Issue]:
    """Report regions whose zones could not be queried."""
    for region, why in context.inputs.quotes.zones_unknown.items():
        if any(candidate.region == region for candidate in context.candidate_list.candidates):
            yield Issue(f"cannot tell which zones of {region} offer the types, so the catalog's zones are tried: {why}")


@check("budget", "error", "The worst-case cost (price times expiry) must not exceed the recipe's budget.")
def within_budget(context: CheckContext) -> Iterator[Issue]:
    """Report a worst-case cost above the budget, or a missing budget."""
    plan, cap = context.plan, context.inputs.recipe.budget.max_usd
    worst = plan.worst_case_usd
    if worst is None:
        return
    if cap is None:
        yield Issue(f"budget.max_usd is not set; the worst case is {worst} USD{unpriced_suffix(plan)}", severity="note")
    elif worst > cap:
        longest = longest_expiry_within(plan, cap)
        assignments = [f"budget.max_usd={worst}", *([f"budget.expiry={longest}"] if longest else [])]
        fix = ", or ".join(command("--set", assignment) for assignment in assignments)
        yield Issue(
            f"the worst case is {worst} USD ({breakdown(plan)}{unpriced_suffix(plan)}), above budget.max_usd {cap} USD",
            fix,
        )


@check("price-age", "warning", "AWS may have changed a price that was read a month ago.", on_hosts=False)
def prices_fresh(context: CheckContext) -> Iterator[Issue]:
    """Report prices that were read more than 30 days ago."""
    inputs = context.inputs
    read_on = [candidate.priced_on for candidate in context.candidate_list.candidates]
    stale = [day for day in read_on if inputs.today - day > PRICES_STALE]
    if stale:
        age = (inputs.today - min(stale)).days
        message = f"the oldest price was read on {min(stale).isoformat()}, {plural(age, 'day')} ago"
        yield Issue(message, severity="note" if inputs.rehearsed else "warning")


@check("expiry", "warning", "Nodes that expire before the run starts cost money and do nothing.", on_hosts=False)
def expiry_long_enough(context: CheckContext) -> Iterator[Issue]:
    """Report an expiry below ten minutes, because nodes need several minutes to boot."""
    expiry = context.inputs.recipe.budget.expiry
    if expiry < SHORTEST_RUN_S and not context.inputs.rehearsed:
        message = f"the expiry is {expiry}, but nodes need several minutes to boot"
        yield Issue(message, command("--set", f"budget.expiry={DurationS(SHORTEST_RUN_S)}"))


@check("expected-time", "warning", "A run that cannot finish before the expiry is cut off, and its cost is wasted.")
def expiry_reaches(context: CheckContext) -> Iterator[Issue]:
    """Report work that would not finish before the expiry, even at the reference rate."""
    expected, expiry_s = context.plan.expected, context.plan.expiry_s
    if expected is not None and expected.seconds > expiry_s:
        minutes = DurationS(-(-expected.seconds // 60) * 60)
        message = f"the work takes {minutes} at the reference rate, but the nodes terminate after {DurationS(expiry_s)}"
        yield Issue(message, command("--set", f"budget.expiry={minutes}"))


@check("idle", "warning", "An idle cluster costs money until it expires.")
def idle_unsupported(context: CheckContext) -> Iterator[Issue]:
    """Report `budget.idle`, which is not implemented yet."""
    if context.inputs.recipe.budget.idle is not None:
        yield Issue("budget.idle: this version does not delete idle clusters yet, so they run until their expiry")


@check(
    "cool-down",
    "note",
    "A candidate that recently had no capacity is less likely to have capacity than the others.",
    on_hosts=False,
)
def no_capacity_lately(context: CheckContext) -> Iterator[Issue]:
    """Report candidates that recently had no capacity. Capacity may return, so they are tried last, not excluded."""
    refused = context.inputs.quotes.refused
    ages_s = [(candidate, refused.get(candidate.key)) for candidate in context.candidate_list.candidates]
    last = ", tried last" if any(age_s is None for _, age_s in ages_s) else ""
    for candidate, age_s in ages_s:
        if age_s is not None:
            ago = f"{age_s // 60} min" if age_s >= _MINUTE_S else f"{age_s} s"
            yield Issue(f"{candidate.label}: no capacity {ago} ago{last}")


@check(
    "reservation",
    "error",
    "A reservation has its own start, end and price, which may not suit the run.",
    on_hosts=False,
)
def reservation_terms(context: CheckContext) -> Iterator[Issue]:
    """Report the cost and start of a reservation, and whether the run is shortened because the reservation ends."""
    inputs = context.inputs
    reservation, now = inputs.quotes.reservation, inputs.quotes.asked_at
    if reservation is None or now is None:
        if inputs.recipe.resources.reservation and not inputs.quotes.live:
            message = f"{inputs.recipe.resources.reservation} was not checked: its zone, start and end are unknown"
            yield Issue(message, "plan without --offline", "warning")
        return
    if not context.candidate_list.candidates:
        return
    if context.plan.expiry_s < min(SHORTEST_RUN_S, int(inputs.recipe.budget.expiry)):
        yield Issue(f"{reservation.id} ends too soon for a run: AWS terminates its nodes 30 minutes before the end")
    for line in reservation_notes(reservation, now, int(inputs.recipe.budget.expiry)):
        yield Issue(line, severity="note")


@check("spot", "warning", "A spot interruption must not lose the work, and spot prices change.", on_hosts=False)
def spot_is_safe(context: CheckContext) -> Iterator[Issue]:
    """Report spot capacity without a checkpoint, and spot prices that were not read today."""
    inputs = context.inputs
    if "spot" not in inputs.markets:
        return
    if inputs.recipe.checkpoint is None:
        message = "spot nodes can be interrupted with two minutes' notice, but the recipe has no checkpoint"
        yield Issue(message, "--set resources.market=on-demand")
    spot = [candidate for candidate in context.candidate_list.candidates if candidate.market == "spot"]
    if any(candidate.priced_on != inputs.today for candidate in spot):
        message = "spot prices change: the worst case uses the highest observed price, or the on-demand price"
        yield Issue(message, severity="note" if inputs.rehearsed else "warning")


@check("grace", "warning", "A checkpoint that is not complete before the node terminates is lost.")
def checkpoint_in_time(context: CheckContext) -> Iterator[Issue]:
    """Report a grace period that is longer than the spot notice or the expiry allows."""
    checkpoint = context.inputs.recipe.checkpoint
    if checkpoint is None:
        return
    grace = checkpoint.grace
    if "spot" in context.inputs.markets and grace > _NOTICE_S - _HEADWAY_S:
        message = f"checkpoint.grace is {grace}, but spot nodes terminate two minutes after the notice"
        yield Issue(message, "--set checkpoint.grace=90s")
    if grace >= context.plan.expiry_s:
        yield Issue(f"checkpoint.grace is {grace}, but the nodes terminate after {DurationS(context.plan.expiry_s)}")


@check("all-or-none", "error", "Nodes of an incomplete cluster cost money but cannot run the recipe.", on_hosts=False)
def gang_launch_possible(context: CheckContext) -> Iterator[Issue]:
    """Report several spot nodes under the pulumi engine.

    Pulumi's AWS provider accepts the spot options `min_target_capacity`, `single_instance_type` and
    `single_availability_zone` but does not send them: see `expandSpotOptionsRequest` in
    internal/service/ec2/ec2_fleet.go of hashicorp/terraform-provider-aws, on which the provider is based.
    """
    inputs, nodes = context.inputs, context.plan.nodes
    if inputs.engine != "pulumi" or nodes == 1 or "spot" not in inputs.markets:
        return
    message = f"the pulumi engine cannot launch {nodes} spot nodes all or none: the provider sends no minimum for spot"
    direct = "--engine direct"
    fix = f"{direct}, or --set resources.market=on-demand" if inputs.market == "spot" else direct
    yield Issue(f"{message}, so a partial launch would be billed", fix)


@check(
    "placement",
    "warning",
    "A placement group restricts the available capacity and does not work with every reservation.",
    on_hosts=False,
)
def placement_possible(context: CheckContext) -> Iterator[Issue]:
    """Report a placement group with spot or reserved capacity. Capacity Blocks do not use a placement group."""
    nodes, markets = context.plan.nodes, context.inputs.markets
    if nodes == 1 or not context.candidate_list.candidates:
        return
    if "reservation" in markets:
        reservation = context.inputs.recipe.resources.reservation
        message = f"the {nodes} nodes use a new placement group, but {reservation} was not created in it"
        yield Issue(f"{message}: AWS may reject the launch", "use one node per cluster, or a Capacity Block")
    if "spot" in markets:
        message = f"{nodes} spot nodes in one placement group are harder to get than one node"
        yield Issue(f"{message}, and an interruption stops them all", severity="note")
