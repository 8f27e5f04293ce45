"""The queries about an account that use cases make through the interfaces of `cloudgpu/backends/base.py`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from cloudgpu.aws import prices_and_quotas
from cloudgpu.aws.ec2 import instances, machine_images, named_resources
from cloudgpu.aws.ec2.subnets import region_network, zone_names
from cloudgpu.aws.ec2.tag_search import ENABLED_EVERYWHERE, enabled_regions
from cloudgpu.aws.iam_grants import service_role_names
from cloudgpu.aws.permission_probe import denied_role_actions, inspect_profile, probe_permissions
from cloudgpu.aws.prices_and_quotas import gpu_quotas, vcpu_limits
from cloudgpu.aws.session.credentials import ecr_login
from cloudgpu.aws.session.session import ServerTime, Session
from cloudgpu.catalog.snapshot import TypeFacts
from cloudgpu.clock import Clock
from cloudgpu.cloud import Grant, Identity, OwnImage, PermissionResult, QuotaLimit
from cloudgpu.errors import CloudError, CloudGpuError
from cloudgpu.plan.named_resources import DatasetSeen, NamedKind, Presence, ProfileSeen
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.subnets import RegionNetwork
from cloudgpu.run.registry_logins import RegistryLogin

_RENEW_AFTER_S: Final = 11 * 3600.0
SessionOf = Callable[[str], Session]
"""Function that returns the session of a region."""


class RegistryLogins:
    """A `FetchLogin` for ECR registries, which connects to AWS when the first login is requested.

    A login is valid for 12 hours. It is renewed before it expires because a run may wait for capacity for days.
    """

    def __init__(self, session: SessionOf, clock: Clock) -> None:
        self._session, self._clock = session, clock
        self._known: dict[str, tuple[float, RegistryLogin | None]] = {}

    def __call__(self, region: str) -> RegistryLogin:
        """Return a login for the registries of a region that is valid for at least another hour."""
        fetched, login = self._known.get(region, (0.0, None))
        if login is None or self._clock.monotonic() - fetched > _RENEW_AFTER_S:
            login = RegistryLogin(*ecr_login(self._session(region).client("ecr"), region))
            self._known[region] = (self._clock.monotonic(), login)
        return login


@dataclass(frozen=True)
class AwsImages:
    """Custom machine images on AWS or the rehearsal cloud, in any region.

    Attributes:
        time: The time by the cloud's clock, by which costs are counted.
    """

    session: SessionOf
    time: ServerTime
    clock: Clock

    def found(self, region: str, name: str = "") -> Sequence[OwnImage]:
        """Return a region's images and the snapshots of deleted images: all of them, or only those named `name`."""
        session = self.session(region)
        images = machine_images.find_images(session, name)
        return (*images, *machine_images.find_orphaned_snapshots(session, name, images))

    def make(self, region: str, instance_id: str, name: str, tags: dict[str, str]) -> str:
        """Start creating an image from an instance, and return the image ID. The instance reboots."""
        return machine_images.start_image(self.session(region), instance_id, name, tags)

    def ready(self, region: str, name: str) -> OwnImage:
        """Wait until the image is available, and return it."""
        return machine_images.wait_for_image(self.session(region), self.clock, name)

    def end(self, image: OwnImage) -> None:
        """Delete an image and its snapshots."""
        machine_images.delete_image(self.session(image.region), image)


@dataclass(frozen=True)
class AwsCatalog:
    """The instance types, prices, images and quotas that AWS or the rehearsal cloud reports.

    Attributes:
        regions: Function that returns every region that is enabled for the account.
    """

    session: SessionOf
    regions: Callable[[], Sequence[str]]
    clock: Clock

    def types(self, region: str) -> Mapping[str, TypeFacts]:
        """Return the instance types with NVIDIA GPUs in a region."""
        return instances.describe_gpu_types(self.session(region))

    def zones(self, region: str) -> Mapping[str, tuple[str, ...]]:
        """Return the zones of a region that offer each GPU instance type, by instance type."""
        return instances.gpu_type_zones(self.session(region))

    def on_demand(self, region: str) -> Mapping[str, Decimal]:
        """Return the on-demand price in USD per hour of every instance type in the region's price list."""
        return prices_and_quotas.on_demand(self.session(region))

    def spot(self, region: str, types: Sequence[str]) -> Mapping[str, tuple[Decimal, Decimal]]:
        """Return the lowest and the highest spot price in USD per hour during the last day, by instance type."""
        return prices_and_quotas.spot(self.session(region), types, self.clock.now())

    def images(self, region: str, parameters: Sequence[str]) -> Mapping[str, str]:
        """Return the machine image of each SSM parameter, omitting parameters that do not exist in the region."""
        images = machine_images.resolve_image_ids(self.session, [(parameter, region) for parameter in parameters])
        if parameters and not images:
            message = f"cannot read any of the SSM parameters for machine images in {region}"
            raise CloudError(message, hint="check that your credentials have the permission ssm:GetParameter")
        return {parameter: image for (parameter, _), image in images.items()}

    def quotas(self, region: str) -> Mapping[str, int]:
        """Return the vCPU limit of each quota, by quota key."""
        return vcpu_limits(self.session(region))


@dataclass(frozen=True)
class AwsQueries:
    """Looks up an account's identity, permissions and quotas, and the resources that a recipe names.

    Attributes:
        region: The region for all queries that do not name another one.
        regions: Function that returns every region that is enabled for the account.
    """

    session: SessionOf
    region: str
    regions: Callable[[], Sequence[str]]

    @property
    def _here(self) -> Session:
        return self.session(self.region)

    def identity(self) -> Identity:
        """Return the caller's AWS identity."""
        return self._here.identity()

    def permission_results(self, identity: Identity, grants: Sequence[Grant]) -> Sequence[PermissionResult]:
        """Return one result for each action in the grants: whether the identity is allowed to perform the action."""
        return probe_permissions(self._here, identity, grants)

    def quotas(self) -> Sequence[QuotaLimit]:
        """Return the vCPU quotas for GPU instances."""
        return gpu_quotas(self._here)

    def service_roles(self) -> Sequence[str]:
        """Return the names of the account's service-linked roles."""
        return service_role_names(self._here)

    def network(self, request: NetworkRequest) -> RegionNetwork:
        """Return the VPC, with its subnets, that new clusters would use."""
        return region_network(self._here, request)

    def zones(self) -> Sequence[str]:
        """Return the region's zones, except local and Wavelength zones."""
        return zone_names(self._here)

    def is_region_enabled(self) -> bool | None:
        """Return False if the account has not enabled the region, or None if that is unknown.

        Calls in such a region fail as if the credentials were invalid, so another region is asked.
        """
        try:
            return self.region in enabled_regions(self._here.in_region(ENABLED_EVERYWHERE))
        except CloudGpuError:
            return None

    def dataset(self, url: str) -> DatasetSeen:
        """Return a summary of the objects under an S3 URL. If the lookup fails, the result is `unknown`."""
        return named_resources.check_dataset(self._here, url)

    def named(self, kind: NamedKind, name: str, region: str) -> tuple[Presence, str]:
        """Return whether a named resource exists and, if unknown, the reason. Roles do not depend on the region."""
        return named_resources.check_named_resource(self.session(region or self.region), kind, name)

    def profile(self, name: str, *, session_manager: bool) -> ProfileSeen | None:
        """Return whether the caller may launch nodes with an instance profile, and what it lacks; None if not found."""
        return inspect_profile(self._here, name, session_manager=session_manager)

    def denied_role_actions(self, actions: Sequence[str], boundary_arn: str) -> tuple[str, ...]:
        """Return which of these IAM actions the caller's policies deny for cloudgpu's roles; empty if unknown."""
        return denied_role_actions(self._here, actions, boundary_arn)
