"""The input of the planner: the recipe, the catalog, the state of the cloud, and which of it must be queried."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

from cloudgpu.catalog import Catalog, InstanceType
from cloudgpu.catalog.compatibility import Software
from cloudgpu.catalog.compatibility import software as known_software
from cloudgpu.catalog.gpu_spec import types_for_spec
from cloudgpu.hosts.host import HostsView
from cloudgpu.plan.candidate import Market
from cloudgpu.plan.capacity import is_reserved
from cloudgpu.plan.network_access import (
    DEFAULT_ELASTIC_IPS,
    GATEWAYS,
    NO_REQUEST,
    NetworkRequest,
    PublicAddress,
    choose_public_address,
    several_interfaces,
)
from cloudgpu.plan.node_software import machine_image
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.subnets import SubnetDecision, SubnetNeed, choose_subnet, in_private_subnet
from cloudgpu.recipe.schema import Recipe
from cloudgpu.targets import is_simulated


@dataclass(frozen=True)
class PlannerInput:
    """The immutable input from which the planner computes candidates and findings."""

    recipe: Recipe
    target: str
    catalog: Catalog
    quotes: Quotes
    default_region: str
    today: date
    network: NetworkRequest = NO_REQUEST
    software: Software = field(default_factory=known_software)
    hosts: HostsView | None = None
    """Inventory for the target `ssh`; None for other targets."""
    engine: str = "direct"
    """Engine that would create the cluster, `direct` or `pulumi`."""

    @property
    def rehearsed(self) -> bool:
        """True if the target is the rehearsal cloud."""
        return is_simulated(self.target)

    @property
    def market(self) -> Market:
        """The recipe's market; see `markets`."""
        return self.recipe.resources.market

    @property
    def markets(self) -> tuple[Market, ...]:
        """Markets to try, in order. With `market: on-demand` and `prefer: spot`, spot is tried before on-demand."""
        if self.market == "on-demand" and self.recipe.resources.prefer == "spot":
            return ("spot", "on-demand")
        return (self.market,)

    def markets_of(self, instance_type: InstanceType) -> tuple[Market, ...]:
        """Return the markets to try for a type: requested markets that are reserved or in which EC2 offers it."""
        return tuple(market for market in self.markets if is_reserved(market) or market in instance_type.usage_classes)

    @property
    def regions(self) -> tuple[str, ...]:
        """The recipe's regions in order. Default: the regions of its zones or, without zones, the default region."""
        resources = self.recipe.resources
        of_zones = tuple(dict.fromkeys(zone[:-1] for zone in resources.zones))
        return tuple(dict.fromkeys(resources.regions)) or of_zones or (self.default_region,)

    @property
    def known_regions(self) -> tuple[str, ...]:
        """The requested regions that are in the catalog. Any other region is an error."""
        return tuple(region for region in self.regions if region in self.catalog.regions)

    @property
    def specs(self) -> tuple[str, ...]:
        """GPU specs and instance types as written in the recipe, in order."""
        resources = self.recipe.resources
        single = resources.instance_type or resources.gpu
        return (single,) if single else tuple(dict.fromkeys(resources.any_of))

    @property
    def types(self) -> tuple[InstanceType, ...]:
        """Every known instance type that matches the specs, in order, including retired ones."""
        matches = [instance_type for spec in self.specs for instance_type in types_for_spec(spec, self.catalog)]
        return tuple({instance_type.name: instance_type for instance_type in matches}.values())

    def wants_efa(self, instance_type: InstanceType) -> bool:
        """Return True if nodes of a type need EFA.

        With `network: auto`, nodes need EFA if there are several of them and the type supports EFA.
        """
        resources = self.recipe.resources
        return resources.network == "efa" or (
            resources.network == "auto" and resources.nodes > 1 and instance_type.efa_interfaces > 0
        )

    def efa_of(self, instance_type: InstanceType) -> int:
        """Return the number of EFA interfaces to attach to each node of this type."""
        return instance_type.efa_interfaces if self.wants_efa(instance_type) else 0

    def free_addresses(self, region: str) -> int:
        """Return the number of Elastic IPs that the cloud reports as available, or the default AWS quota if unknown."""
        return self.quotes.free_addresses.get(region, DEFAULT_ELASTIC_IPS)

    def public_address(self, instance_type: InstanceType, region: str) -> PublicAddress:
        """Return the kind of public address that nodes of a type get in a region."""
        several = several_interfaces(instance_type, self.efa_of(instance_type))
        public_address = choose_public_address(
            self.network, self.recipe.resources.nodes, self.free_addresses(region), several=several
        )
        network = self.quotes.networks.get(region)
        if public_address == "auto" and network and in_private_subnet(network, self.network):
            return "private"
        return public_address

    def subnet(self, instance_type: InstanceType, region: str, zone: str) -> SubnetDecision | None:
        """Return the subnet for nodes of a type in a zone; None if it is unknown or created with the cluster."""
        network, public_address = self.quotes.networks.get(region), self.public_address(instance_type, region)
        if network is None or network.missing or network.unknown or public_address in GATEWAYS:
            return None
        need = SubnetNeed(public_address, self.network.reach, self.recipe.resources.nodes, self.network.subnet_id)
        return choose_subnet(network, zone, need)

    def image_parameter(self, instance_type: InstanceType) -> str:
        """Return the SSM parameter of the machine image for a type; empty if the recipe sets an image ID."""
        image = machine_image(self.recipe, self.catalog.gpus[instance_type.gpu])
        return "" if image.startswith("ami-") else image

    def image(self, instance_type: InstanceType, region: str) -> str:
        """Return the machine image for a type, or its SSM parameter if it has not been resolved."""
        parameter = self.image_parameter(instance_type)
        return self.quotes.images.get((parameter, region), parameter) or str(self.recipe.resources.image)

    def zones_offering(self, instance_type: InstanceType, region: str) -> tuple[str, ...]:
        """Return the zones of a region that offer a type, from the cloud or, if not queried, from the catalog."""
        return self.quotes.zones.get((instance_type.name, region), instance_type.zones.get(region, ()))


def images_to_resolve(recipe: Recipe, catalog: Catalog, default_region: str) -> tuple[tuple[str, str], ...]:
    """Return the (SSM parameter, region) pairs that resolve to the plan's machine images."""
    inputs = PlannerInput(recipe, "aws", catalog, Quotes(), default_region, date.min)
    parameters = {
        inputs.image_parameter(instance_type) for instance_type in inputs.types if not instance_type.retired
    } - {""}
    return tuple((name, region) for name in sorted(parameters) for region in inputs.known_regions)


def known_regions(recipe: Recipe, catalog: Catalog, default_region: str) -> tuple[str, ...]:
    """Return the requested regions that are in the catalog."""
    return PlannerInput(recipe, "aws", catalog, Quotes(), default_region, date.min).known_regions


def regions_needing_elastic_ips(
    recipe: Recipe, catalog: Catalog, default_region: str, network: NetworkRequest
) -> tuple[str, ...]:
    """Return the regions where the settings or multiple network interfaces may require Elastic IPs for the nodes."""
    inputs = PlannerInput(recipe, "aws", catalog, Quotes(), default_region, date.min)
    several = any(
        several_interfaces(instance_type, inputs.efa_of(instance_type))
        for instance_type in inputs.types
        if not instance_type.retired
    )
    return inputs.known_regions if several or network.public_address in ("elastic", *GATEWAYS) else ()


def offers_to_query(recipe: Recipe, catalog: Catalog, default_region: str) -> tuple[tuple[str, str], ...]:
    """Return the (instance type, region) pairs whose zones the plan needs. Retired types are omitted."""
    inputs = PlannerInput(recipe, "aws", catalog, Quotes(), default_region, date.min)
    names = [instance_type.name for instance_type in inputs.types if not instance_type.retired]
    return tuple((name, region) for name in names for region in inputs.known_regions)


def prices_to_query(inputs: PlannerInput, regions: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the (instance type, region) pairs that are offered in these regions and whose price is unknown.

    Capacity Blocks need no hourly price, because they are paid in advance.
    """
    if inputs.market == "capacity-block":
        return ()
    return tuple(
        (instance_type.name, region)
        for instance_type in inputs.types
        for region in regions
        if not instance_type.retired
        and region not in instance_type.on_demand_usd
        and inputs.zones_offering(instance_type, region)
    )
