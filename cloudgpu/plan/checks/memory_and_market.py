"""Rules for a type: enough GPU memory, and sold in the requested market."""

from collections.abc import Iterator
from decimal import Decimal

from cloudgpu.catalog import InstanceType
from cloudgpu.plan.checks.rule import Reason, type_rule
from cloudgpu.plan.planner_input import Question
from cloudgpu.plan.reservations import is_reserved
from cloudgpu.text import command


@type_rule(
    "gpu-memory", "A model that does not fit into GPU memory fails at its first step, after the nodes are launched."
)
def gpu_memory_short(question: Question, kind: InstanceType) -> Iterator[Reason]:
    """Exclude types with less memory per GPU than the recipe requires."""
    needed = question.recipe.resources.gpu_memory
    if needed is not None and kind.gpu_memory_gib < needed:
        alternative = _cheapest_with(question, kind, Decimal(needed))
        memory = f"{kind.name} has {kind.gpu_memory_gib:f} GiB on each {kind.gpu}"
        yield Reason(
            f"{memory}, but the recipe requires {int(needed)} GiB",
            command("--set", f"resources.instance_type={alternative}") if alternative else "",
        )


@type_rule("market", "A type that AWS does not sell in the requested market fails in every zone.")
def sold_otherwise(question: Question, kind: InstanceType) -> Iterator[Reason]:
    """Exclude types that AWS does not sell in the requested market."""
    market = question.market
    if not question.markets_of(kind):
        sold = f", only as {' or '.join(kind.usage_classes)}" if kind.usage_classes else ""
        requested = " or ".join(question.markets)
        yield Reason(f"AWS does not sell {kind.name} as {requested}{sold}", _other_market(kind, market))
    elif question.markets == ("on-demand",) and not kind.on_demand_usd and "capacity-block" in kind.usage_classes:
        message = f"{kind.name} has no known on-demand price; AWS sells it as a Capacity Block"
        spot = ", or --set resources.market=spot" if kind.spot_usd else ""
        block = "buy one, set resources.market to capacity-block and resources.reservation to its id"
        yield Reason(message, f"{block}{spot}")


def _other_market(kind: InstanceType, market: str) -> str:
    """Return the option for another market. Reserved markets need an ID, so they are not suggested."""
    others = (usage_class for usage_class in kind.usage_classes if usage_class != market)
    other = next((usage_class for usage_class in others if not is_reserved(usage_class)), "")
    return command("--set", f"resources.market={other}") if other else ""


def _cheapest_with(question: Question, kind: InstanceType, memory_gib: Decimal) -> str:
    """Return the cheapest offered type with as many GPUs and this memory per GPU; empty if there is none."""
    offers = [
        (other.on_demand_usd[region], other.name)
        for other in question.catalog.types.values()
        if other.gpus >= kind.gpus and other.gpu_memory_gib >= memory_gib
        if not other.retired and other.provider == "aws"
        for region in question.known_regions
        if region in other.on_demand_usd and question.zones_offering(other, region)
    ]
    return min(offers)[1] if offers else ""
