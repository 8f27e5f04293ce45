"""The input of the planner: the recipe, the catalog and what is known of the cloud."""

from dataclasses import dataclass, field
from datetime import date

from cloudgpu.catalog import Catalog, InstanceType
from cloudgpu.catalog.gpu_spec import types_for_spec
from cloudgpu.catalog.software import Software
from cloudgpu.catalog.software import software as known_software
from cloudgpu.hosts.usage import HostsView
from cloudgpu.plan.candidate import Market
from cloudgpu.plan.network_access import (
    DEFAULT_ELASTIC_IPS,
    NO_REQUEST,
    NetworkRequest,
    PublicAddress,
    chosen,
    several_interfaces,
)
from cloudgpu.plan.node_driver import machine_image
from cloudgpu.plan.plan import Quotes, Target
from cloudgpu.plan.reservations import is_reserved
from cloudgpu.recipe.schema import Recipe


@dataclass(frozen=True)
class Question:
    """Everything that checks and candidates are computed from, as immutable values."""

    recipe: Recipe
    target: Target
    catalog: Catalog
    quotes: Quotes
    default_region: str
    today: date
    network: NetworkRequest = NO_REQUEST
    software: Software = field(default_factory=known_software)
    hosts: HostsView | None = None
    """Inventory for the target `ssh`; None for other targets."""

    @property
    def rehearsed(self) -> bool:
        """True if the target is the rehearsal cloud."""
        return self.target == "rehearsal"

    @property
    def market(self) -> Market:
        """The recipe's market; see `markets`."""
        return self.recipe.resources.market

    @property
    def markets(self) -> tuple[Market, ...]:
        """Markets to try, in order: a recipe that prefers spot tries it before on-demand."""
        if self.market == "on-demand" and self.recipe.resources.prefer == "spot":
            return ("spot", "on-demand")
        return (self.market,)

    def markets_of(self, kind: InstanceType) -> tuple[Market, ...]:
        """Return the markets in which EC2 sells a type. Reservations count always, because they are already bought."""
        return tuple(market for market in self.markets if is_reserved(market) or market in kind.usage_classes)

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions in the order to try them; derived from the zones if the recipe names no region."""
        resources = self.recipe.resources
        of_zones = tuple(dict.fromkeys(zone[:-1] for zone in resources.zones))
        return tuple(dict.fromkeys(resources.regions)) or of_zones or (self.default_region,)

    @property
    def known_regions(self) -> tuple[str, ...]:
        """The regions that the catalog knows. Others are an error, whatever the cloud offers there."""
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
        matches = [kind for spec in self.specs for kind in types_for_spec(spec, self.catalog)]
        return tuple({kind.name: kind for kind in matches}.values())

    def wants_efa(self, kind: InstanceType) -> bool:
        """Return True if EFA is attached: if the recipe requires it, or if several nodes can use it."""
        resources = self.recipe.resources
        return resources.network == "efa" or (
            resources.network == "auto" and resources.nodes > 1 and kind.efa_interfaces > 0
        )

    def efa_of(self, kind: InstanceType) -> int:
        """Return the number of EFA interfaces to attach to a node of a type."""
        return kind.efa_interfaces if self.wants_efa(kind) else 0

    def free_addresses(self, region: str) -> int:
        """Return the Elastic IPs available: as the cloud reports, else the default AWS quota."""
        return self.quotes.free_addresses.get(region, DEFAULT_ELASTIC_IPS)

    def public_address(self, kind: InstanceType, region: str) -> PublicAddress:
        """Return what kind of public address nodes of a type get in a region."""
        several = several_interfaces(kind, self.efa_of(kind))
        return chosen(self.network, self.recipe.resources.nodes, self.free_addresses(region), several=several)

    def image_parameter(self, kind: InstanceType) -> str:
        """Return the SSM parameter of the machine image for a type; empty if the recipe names an image."""
        image = machine_image(self.recipe, self.catalog.gpus[kind.gpu])
        return "" if image.startswith("ami-") else image

    def image(self, kind: InstanceType, region: str) -> str:
        """Return the machine image for a type, or its SSM parameter if it has not been resolved."""
        parameter = self.image_parameter(kind)
        return self.quotes.images.get((parameter, region), parameter) or str(self.recipe.resources.image)

    def zones_offering(self, kind: InstanceType, region: str) -> tuple[str, ...]:
        """Return the zones of a region that offer a type, from the cloud or, if not queried, from the catalog."""
        return self.quotes.zones.get((kind.name, region), kind.zones.get(region, ()))
