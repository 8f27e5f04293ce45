"""Rules for a type: its GPUs must have enough memory, and AWS must offer the type in the requested market."""

from collections.abc import Iterator
from decimal import Decimal

from cloudgpu.catalog import InstanceType
from cloudgpu.plan.checks.rule import Reason, type_rule
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.reservations import is_reserved
from cloudgpu.text import command


@type_rule(
    "gpu-memory", "A model that does not fit into GPU memory fails at its first step, after the nodes are launched."
)
def gpu_memory_short(question: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types with less memory per GPU than the recipe requires."""
    needed = question.recipe.resources.gpu_memory
    if needed is not None and instance_type.gpu_memory_gib < needed:
        alternative = _cheapest_with(question, instance_type, Decimal(needed))
        memory = f"{instance_type.name} has {instance_type.gpu_memory_gib:f} GiB on each {instance_type.gpu}"
        yield Reason(
            f"{memory}, but the recipe requires {int(needed)} GiB",
            command("--set", f"resources.instance_type={alternative}") if alternative else "",
        )


@type_rule("market", "A type that AWS does not offer in the requested market fails in every zone.")
def not_sold_in_market(question: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types that AWS does not offer in the requested market."""
    market = question.market
    if not question.markets_of(instance_type):
        offered = f", only as {' or '.join(instance_type.usage_classes)}" if instance_type.usage_classes else ""
        requested = " or ".join(question.markets)
        yield Reason(
            f"AWS does not offer {instance_type.name} as {requested}{offered}", _other_market(instance_type, market)
        )
    elif (
        question.markets == ("on-demand",)
        and not instance_type.on_demand_usd
        and "capacity-block" in instance_type.usage_classes
    ):
        message = f"{instance_type.name} has no known on-demand price, but AWS offers it in Capacity Blocks"
        spot = ", or --set resources.market=spot" if instance_type.spot_usd else ""
        block = "buy a block, and set resources.market to capacity-block and resources.reservation to its ID"
        yield Reason(message, f"{block}{spot}")


def _other_market(instance_type: InstanceType, market: str) -> str:
    """Return the option for another market. Reserved markets are not suggested because they need a reservation ID."""
    others = (usage_class for usage_class in instance_type.usage_classes if usage_class != market)
    other = next((usage_class for usage_class in others if not is_reserved(usage_class)), "")
    return command("--set", f"resources.market={other}") if other else ""


def _cheapest_with(question: PlannerInput, instance_type: InstanceType, memory_gib: Decimal) -> str:
    """Return the cheapest offered type with at least as many GPUs and this much memory per GPU; empty if none."""
    offers = [
        (other.on_demand_usd[region], other.name)
        for other in question.catalog.types.values()
        if other.gpus >= instance_type.gpus and other.gpu_memory_gib >= memory_gib
        if not other.retired and other.provider == "aws"
        for region in question.known_regions
        if region in other.on_demand_usd and question.zones_offering(other, region)
    ]
    return min(offers)[1] if offers else ""
