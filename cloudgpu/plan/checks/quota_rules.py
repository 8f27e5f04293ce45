"""Rules for a type in a region: the account has enabled the region, and its quota is large enough."""

from collections.abc import Iterator

from cloudgpu.catalog import InstanceType
from cloudgpu.catalog.quotas import quota_of
from cloudgpu.plan.checks.rule import Reason, region_rule
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.reservations import is_reserved
from cloudgpu.text import command


@region_rule("region-enabled", "Regions that the account has not enabled reject every call.")
def region_not_enabled(question: PlannerInput, _instance_type: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions that the account has not enabled."""
    enabled = question.quotes.survey.enabled_regions
    if enabled is not None and region not in enabled:
        enable = command("aws", "account", "enable-region", "--region-name", region)
        fix = f"`{enable}`, or choose another region"
        yield Reason(f"{region} is not enabled for this account", fix)


@region_rule("quota", "A cluster above the account's quota fails in every zone of the region.")
def quota_too_small(question: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude types that need more vCPUs than the quota allows. `checks.quota` also counts running instances."""
    if is_reserved(question.market):
        # A reservation already counts against the quota; a Capacity Block does not count at all.
        return
    nodes, needed = question.recipe.resources.nodes, question.recipe.resources.nodes * instance_type.vcpus
    quotas = [quota_of(instance_type.name, market) for market in question.markets_of(instance_type)]
    headrooms = [(quota, question.quotes.quotas.get((region, quota.key))) for quota in quotas]
    too_small = [
        (quota, headroom) for quota, headroom in headrooms if headroom is not None and needed > headroom.limit_vcpus
    ]
    if len(too_small) < len(headrooms):
        return
    for quota, headroom in too_small:
        limit, since = headroom.limit_vcpus, headroom.since(live=question.quotes.live)
        fewer = (
            f"{command('--set', f'resources.nodes={limit // instance_type.vcpus}')}, or "
            if limit >= instance_type.vcpus
            else ""
        )
        message = (
            f"{nodes} x {instance_type.name} need {needed} vCPUs in {region}, but {quota} allow only {limit}{since}"
        )
        request = quota.increase_command(region, needed)
        asked = f"with `{request}`" if request else f"at {quota.console(region)}"
        yield Reason(message, f"{fewer}request a quota of {needed} vCPUs {asked}")
