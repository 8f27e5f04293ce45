"""AWS implementation of the `CatalogSource` interface, which a catalog refresh uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from cloudgpu.aws.ec2 import instance_types, machine_images
from cloudgpu.aws.pricing import offers, prices, quotas
from cloudgpu.backends.aws.ports import AccountClients
from cloudgpu.backends.catalog_source import CatalogSource
from cloudgpu.catalog.snapshots.snapshot import TypeFacts
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError


@dataclass(frozen=True)
class AwsCatalog(CatalogSource):
    """The instance types, prices, images and quotas that AWS or the rehearsal cloud reports."""

    cloud: AccountClients
    clock: Clock

    @property
    def target(self) -> str:
        """Target of the cloud, `aws` or `rehearsal`."""
        return self.cloud.target

    @property
    def endpoint(self) -> str:
        """ID that distinguishes this endpoint from other endpoints with the same account ID; empty for AWS."""
        return self.cloud.endpoint

    def account(self) -> str:
        """Return the account ID of the credentials in use."""
        return self.cloud.account()

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account."""
        return self.cloud.regions()

    def types(self, region: str) -> Mapping[str, TypeFacts]:
        """Return the instance types with NVIDIA GPUs in a region."""
        return instance_types.describe_gpu_types(self.cloud.clients(region))

    def zones(self, region: str) -> Mapping[str, tuple[str, ...]]:
        """Return the zones of a region that offer each GPU instance type, by instance type."""
        return offers.zones(self.cloud.clients(region))

    def on_demand(self, region: str) -> Mapping[str, Decimal]:
        """Return the on-demand price in USD per hour of every instance type in the region's price list."""
        return prices.on_demand(self.cloud.clients(region))

    def spot(self, region: str, types: Sequence[str]) -> Mapping[str, tuple[Decimal, Decimal]]:
        """Return the lowest and the highest spot price in USD per hour during the last day, by instance type."""
        return prices.spot(self.cloud.clients(region), types, self.clock.now())

    def images(self, region: str, parameters: Sequence[str]) -> Mapping[str, str]:
        """Return the machine image of each SSM parameter, omitting parameters that do not exist in the region."""
        images = machine_images.resolve_image_ids(self.cloud.clients, [(parameter, region) for parameter in parameters])
        if parameters and not images:
            message = f"cannot read any of the SSM parameters for machine images in {region}"
            raise CloudError(message, hint="check that your credentials have the permission ssm:GetParameter")
        return {parameter: image for (parameter, _), image in images.items()}

    def quotas(self, region: str) -> Mapping[str, int]:
        """Return the vCPU limit of each quota, by quota key."""
        return quotas.vcpu_limits(self.cloud.clients(region))
