"""The `Source` of a refresh over the AWS room."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from cloudgpu.aws.ec2 import instance_types, machine_images
from cloudgpu.aws.pricing import offers, prices, quotas
from cloudgpu.backends.aws.cloud import AwsCloud
from cloudgpu.catalog.overlay import TypeFacts
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError
from cloudgpu.plan.plan import Target


@dataclass(frozen=True)
class AwsCatalog:
    """What AWS, or what stands in for it, tells of its types, prices, images and quotas."""

    cloud: AwsCloud
    clock: Clock

    @property
    def target(self) -> Target:
        """`aws` or `rehearsal`."""
        return self.cloud.target

    @property
    def endpoint(self) -> str:
        """What tells this endpoint from others of the same account id."""
        return self.cloud.endpoint

    def account(self) -> str:
        """Account id of the credentials in use."""
        return self.cloud.account()

    def regions(self) -> Sequence[str]:
        """Every region that the account can use."""
        return self.cloud.regions()

    def types(self, region: str) -> Mapping[str, TypeFacts]:
        """Types with NVIDIA GPUs that the region has."""
        return instance_types.described(self.cloud.clients(region))

    def zones(self, region: str) -> Mapping[str, tuple[str, ...]]:
        """Type -> zones that offer it."""
        return offers.zones(self.cloud.clients(region))

    def on_demand(self, region: str) -> Mapping[str, Decimal]:
        """Type -> USD an hour, of everything in the price list."""
        return prices.on_demand(self.cloud.clients(region))

    def spot(self, region: str, types: Sequence[str]) -> Mapping[str, tuple[Decimal, Decimal]]:
        """Type -> lowest and highest USD an hour of the last day."""
        return prices.spot(self.cloud.clients(region), types, self.clock.now())

    def images(self, region: str, parameters: Sequence[str]) -> Mapping[str, str]:
        """SSM parameter -> machine image; one that the region does not have is left out.

        Raises:
            CloudError: It has none of them, or none may be read: nobody can tell which.
        """
        found = machine_images.named(self.cloud.clients, [(one, region) for one in parameters])
        if parameters and not found:
            message = f"none of the parameters that name machine images could be read in {region}"
            raise CloudError(message, hint="the permission is ssm:GetParameter")
        return {parameter: image for (parameter, _), image in found.items()}

    def quotas(self, region: str) -> Mapping[str, int]:
        """Key of a quota -> vCPUs that may run."""
        return quotas.limits(self.cloud.clients(region))
