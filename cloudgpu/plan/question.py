"""What is being planned, as one value: the recipe's wishes beside what is known of the world."""

from dataclasses import dataclass, field
from datetime import date

from cloudgpu.catalog import Catalog, InstanceType
from cloudgpu.catalog.gpu_spec import types_for_spec
from cloudgpu.catalog.software import Software
from cloudgpu.catalog.software import software as known_software
from cloudgpu.hosts.seen import HostsView
from cloudgpu.plan.candidate import Market
from cloudgpu.plan.driver import machine_image
from cloudgpu.plan.plan import Quotes, Target
from cloudgpu.plan.reaching import (
    DEFAULT_ELASTIC_IPS,
    NO_REQUEST,
    NetworkRequest,
    PublicAddress,
    chosen,
    several_interfaces,
)
from cloudgpu.plan.reservations import is_reserved
from cloudgpu.recipe.schema import Recipe


@dataclass(frozen=True)
class Question:
    """Everything that checks and candidates are computed from; all of it pure values."""

    recipe: Recipe
    target: Target
    catalog: Catalog
    quotes: Quotes
    default_region: str
    today: date
    network: NetworkRequest = NO_REQUEST
    software: Software = field(default_factory=known_software)
    hosts: HostsView | None = None
    """The inventory that the target `ssh` chooses from; None on every other target."""

    @property
    def rehearsed(self) -> bool:
        """Whether nothing of it costs real money."""
        return self.target == "rehearsal"

    @property
    def market(self) -> Market:
        """How the nodes are bought, as the recipe says; see `markets`."""
        return self.recipe.resources.market

    @property
    def markets(self) -> tuple[Market, ...]:
        """Every way in which the nodes may be bought: a recipe that prefers spot takes it before on-demand."""
        if self.market == "on-demand" and self.recipe.resources.prefer == "spot":
            return ("spot", "on-demand")
        return (self.market,)

    def markets_of(self, kind: InstanceType) -> tuple[Market, ...]:
        """Those of the ways in which EC2 sells a type. What is reserved already was sold, whatever is known of it."""
        return tuple(market for market in self.markets if is_reserved(market) or market in kind.usage_classes)

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions in the order to try them; zones name theirs when the recipe names no region."""
        resources = self.recipe.resources
        of_zones = tuple(dict.fromkeys(zone[:-1] for zone in resources.zones))
        return tuple(dict.fromkeys(resources.regions)) or of_zones or (self.default_region,)

    @property
    def known_regions(self) -> tuple[str, ...]:
        """Of those, the ones that the catalogue knows; the others are an error, whatever a cloud offers there."""
        return tuple(region for region in self.regions if region in self.catalog.regions)

    @property
    def specs(self) -> tuple[str, ...]:
        """GPUs with count and instance types, as the recipe names them, in order."""
        resources = self.recipe.resources
        single = resources.instance_type or resources.gpu
        return (single,) if single else tuple(dict.fromkeys(resources.any_of))

    @property
    def types(self) -> tuple[InstanceType, ...]:
        """Every known type that the wishes mean, in order, each once; retired ones too."""
        found = [kind for spec in self.specs for kind in types_for_spec(spec, self.catalog)]
        return tuple({kind.name: kind for kind in found}.values())

    def wants_efa(self, kind: InstanceType) -> bool:
        """Whether EFA is attached: when insisted on, or when several nodes can use it."""
        resources = self.recipe.resources
        return resources.network == "efa" or (
            resources.network == "auto" and resources.nodes > 1 and kind.efa_interfaces > 0
        )

    def efa_of(self, kind: InstanceType) -> int:
        """EFA interfaces to attach to a node of a type."""
        return kind.efa_interfaces if self.wants_efa(kind) else 0

    def free_addresses(self, region: str) -> int:
        """Elastic IPs that can be had: as the cloud says, else AWS's own quota."""
        return self.quotes.free_addresses.get(region, DEFAULT_ELASTIC_IPS)

    def public_address(self, kind: InstanceType, region: str) -> PublicAddress:
        """How nodes of a type are reached in a region."""
        several = several_interfaces(kind, self.efa_of(kind))
        return chosen(self.network, self.recipe.resources.nodes, self.free_addresses(region), several=several)

    def image_parameter(self, kind: InstanceType) -> str:
        """The SSM parameter that names the machine image for a type; empty where the recipe names the image itself."""
        image = machine_image(self.recipe, self.catalog.gpus[kind.gpu])
        return "" if image.startswith("ami-") else image

    def image(self, kind: InstanceType, region: str) -> str:
        """The machine image for a type: as the cloud names it now, else the parameter that will tell."""
        parameter = self.image_parameter(kind)
        return self.quotes.images.get((parameter, region), parameter) or str(self.recipe.resources.image)

    def zones_offering(self, kind: InstanceType, region: str) -> tuple[str, ...]:
        """Zones of a region that offer a type: the cloud's own answer, or the catalogue's when it was not asked."""
        return self.quotes.zones.get((kind.name, region), kind.zones.get(region, ()))
