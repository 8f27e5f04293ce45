"""Rules on a type: does it have what the run needs, and does AWS sell it in the way asked for? Pure."""

from collections.abc import Iterator
from decimal import Decimal

from cloudgpu.catalog import InstanceType
from cloudgpu.plan.checks.rule import Reason, type_rule
from cloudgpu.plan.question import Question
from cloudgpu.plan.reservations import is_reserved
from cloudgpu.text import command


@type_rule("gpu-memory", "A model that does not fit into the GPU fails at its first step, when the nodes are paid for.")
def gpu_memory_short(question: Question, kind: InstanceType) -> Iterator[Reason]:
    """Less memory on each GPU than the recipe says the run needs."""
    needed = question.recipe.resources.gpu_memory
    if needed is not None and kind.gpu_memory_gib < needed:
        near = _cheapest_with(question, kind, Decimal(needed))
        has = f"{kind.name} has {kind.gpu_memory_gib:f} GiB on each {kind.gpu}"
        yield Reason(
            f"{has}, and the run needs {int(needed)} GiB",
            command("--set", f"resources.instance_type={near}") if near else "",
        )


@type_rule("market", "A type that AWS does not sell in the way asked for is refused in every zone.")
def sold_otherwise(question: Question, kind: InstanceType) -> Iterator[Reason]:
    """Spot, on-demand or Capacity Block of a type that comes otherwise only."""
    market = question.market
    if not question.markets_of(kind):
        sold = " or ".join(kind.usage_classes) or "in no way that is known"
        asked = " or ".join(question.markets)
        yield Reason(f"AWS does not sell {kind.name} as {asked}, only as {sold}", _other_market(kind, market))
    elif question.markets == ("on-demand",) and not kind.on_demand_usd and "capacity-block" in kind.usage_classes:
        message = f"AWS sells {kind.name} by the hour at no known price: it comes as a Capacity Block"
        spot = ", or --set resources.market=spot" if kind.spot_usd else ""
        block = "buy one, set resources.market to capacity-block and resources.reservation to its id"
        yield Reason(message, f"{block}{spot}")


def _other_market(kind: InstanceType, market: str) -> str:
    """A reserved market needs an id that nobody can guess."""
    other = next((one for one in kind.usage_classes if one != market and not is_reserved(one)), "")
    return command("--set", f"resources.market={other}") if other else ""


def _cheapest_with(question: Question, kind: InstanceType, memory_gib: Decimal) -> str:
    """The cheapest type with as many GPUs and this memory on each, where it is offered; empty when there is none."""
    found = [
        (other.on_demand_usd[region], other.name)
        for other in question.catalog.types.values()
        if other.gpus >= kind.gpus and other.gpu_memory_gib >= memory_gib
        if not other.retired and other.provider == "aws"
        for region in question.known_regions
        if region in other.on_demand_usd and question.zones_offering(other, region)
    ]
    return min(found)[1] if found else ""
