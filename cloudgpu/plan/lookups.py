"""Determine which data an online plan needs from the cloud."""

from collections.abc import Sequence
from datetime import date

from cloudgpu.catalog import Catalog
from cloudgpu.plan.network_access import GATEWAYS, NetworkRequest, several_interfaces
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe.schema import Recipe


def images_to_resolve(recipe: Recipe, catalog: Catalog, default_region: str) -> tuple[tuple[str, str], ...]:
    """Return the (SSM parameter, region) pairs that resolve to the plan's machine images."""
    question = PlannerInput(recipe, "aws", catalog, Quotes(), default_region, date.min)
    parameters = {
        question.image_parameter(instance_type) for instance_type in question.types if not instance_type.retired
    } - {""}
    return tuple((name, region) for name in sorted(parameters) for region in question.known_regions)


def known_regions(recipe: Recipe, catalog: Catalog, default_region: str) -> tuple[str, ...]:
    """Return the requested regions that are in the catalog."""
    return PlannerInput(recipe, "aws", catalog, Quotes(), default_region, date.min).known_regions


def regions_needing_elastic_ips(
    recipe: Recipe, catalog: Catalog, default_region: str, network: NetworkRequest
) -> tuple[str, ...]:
    """Return the regions where the settings or multiple network interfaces may require Elastic IPs for the nodes."""
    question = PlannerInput(recipe, "aws", catalog, Quotes(), default_region, date.min)
    several = any(
        several_interfaces(instance_type, question.efa_of(instance_type))
        for instance_type in question.types
        if not instance_type.retired
    )
    return question.known_regions if several or network.public_address in ("elastic", *GATEWAYS) else ()


def offers_to_query(recipe: Recipe, catalog: Catalog, default_region: str) -> tuple[tuple[str, str], ...]:
    """Return the (instance type, region) pairs whose zones the plan needs. Retired types are omitted."""
    question = PlannerInput(recipe, "aws", catalog, Quotes(), default_region, date.min)
    names = [instance_type.name for instance_type in question.types if not instance_type.retired]
    return tuple((name, region) for name in names for region in question.known_regions)


def prices_to_query(question: PlannerInput, regions: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the (instance type, region) pairs that are offered in these regions and whose price is unknown.

    Capacity Blocks need no hourly price, because they are paid in advance.
    """
    if question.market == "capacity-block":
        return ()
    return tuple(
        (instance_type.name, region)
        for instance_type in question.types
        for region in regions
        if not instance_type.retired
        and region not in instance_type.on_demand_usd
        and question.zones_offering(instance_type, region)
    )
