"""Implement the `Source` of a catalog refresh with AWS."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from cloudgpu.aws.ec2 import instance_types, machine_images
from cloudgpu.aws.pricing import offers, prices, quotas
from cloudgpu.backends.aws.cloud import AwsCloud
from cloudgpu.catalog.snapshot import TypeFacts
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError
from cloudgpu.plan.plan import Target


@dataclass(frozen=True)
class AwsCatalog:
    """The instance types, prices, images and quotas that AWS or the rehearsal cloud reports."""

    cloud: AwsCloud
    clock: Clock

    @property
    def target(self) -> Target:
        """`aws` or `rehearsal`."""
        return self.cloud.target

    @property
    def endpoint(self) -> str:
        """Distinguishes this endpoint from others with the same account ID."""
        return self.cloud.endpoint

    def account(self) -> str:
        """Return the account ID of the credentials in use."""
        return self.cloud.account()

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account."""
        return self.cloud.regions()

    def types(self, region: str) -> Mapping[str, TypeFacts]:
        """Return the instance types with NVIDIA GPUs in a region."""
        return instance_types.described(self.cloud.clients(region))

    def zones(self, region: str) -> Mapping[str, tuple[str, ...]]:
        """Return the zones that offer each instance type."""
        return offers.zones(self.cloud.clients(region))

    def on_demand(self, region: str) -> Mapping[str, Decimal]:
        """Return the on-demand USD per hour of every instance type in the price list."""
        return prices.on_demand(self.cloud.clients(region))

    def spot(self, region: str, types: Sequence[str]) -> Mapping[str, tuple[Decimal, Decimal]]:
        """Return the lowest and highest spot USD per hour of the last day, by instance type."""
        return prices.spot(self.cloud.clients(region), types, self.clock.now())

    def images(self, region: str, parameters: Sequence[str]) -> Mapping[str, str]:
        """Return the machine image that each SSM parameter names, without those missing in the region.

        Raises:
            CloudError: No parameter could be read. They may be missing, or the permission may be.
        """
        found = machine_images.named(self.cloud.clients, [(parameter, region) for parameter in parameters])
        if parameters and not found:
            message = f"none of the parameters that name machine images could be read in {region}"
            raise CloudError(message, hint="the permission is ssm:GetParameter")
        return {parameter: image for (parameter, _), image in found.items()}

    def quotas(self, region: str) -> Mapping[str, int]:
        """Return the vCPU limit of each quota, by quota key."""
        return quotas.limits(self.cloud.clients(region))
