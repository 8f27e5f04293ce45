"""What an online planner has to query the cloud for."""

from datetime import date

from cloudgpu.catalog import Catalog
from cloudgpu.plan.network_access import GATEWAYS, NetworkRequest, several_interfaces
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner_input import Question
from cloudgpu.recipe.schema import Recipe


def wanted_images(recipe: Recipe, catalog: Catalog, default_region: str) -> tuple[tuple[str, str], ...]:
    """Return the (SSM parameter, region) pairs that name the machine images of the plan."""
    question = Question(recipe, "aws", catalog, Quotes(), default_region, date.min)
    parameters = {question.image_parameter(kind) for kind in question.types if not kind.retired} - {""}
    return tuple((name, region) for name in sorted(parameters) for region in question.known_regions)


def known_regions(recipe: Recipe, catalog: Catalog, default_region: str) -> tuple[str, ...]:
    """Return the regions of the plan that the catalog knows."""
    return Question(recipe, "aws", catalog, Quotes(), default_region, date.min).known_regions


def wanted_addresses(recipe: Recipe, catalog: Catalog, default_region: str, network: NetworkRequest) -> tuple[str, ...]:
    """Return the regions that may need Elastic IPs, because of the settings or types with several interfaces."""
    question = Question(recipe, "aws", catalog, Quotes(), default_region, date.min)
    several = any(several_interfaces(kind, question.efa_of(kind)) for kind in question.types if not kind.retired)
    return question.known_regions if several or network.public_address in ("elastic", *GATEWAYS) else ()


def wanted_offers(recipe: Recipe, catalog: Catalog, default_region: str) -> tuple[tuple[str, str], ...]:
    """Return the (instance type, region) pairs whose zones matter to the plan: known and not retired."""
    question = Question(recipe, "aws", catalog, Quotes(), default_region, date.min)
    names = [kind.name for kind in question.types if not kind.retired]
    return tuple((name, region) for name in names for region in question.known_regions)
