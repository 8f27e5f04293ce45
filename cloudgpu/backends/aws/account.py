"""AWS implementations of the interfaces that query an account: `doctor`, named resources, images, registry logins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloudgpu.aws.ec2 import baked_images, named_resources
from cloudgpu.aws.ec2.baked_images import OwnImage
from cloudgpu.aws.ec2.registries import EcrLogins
from cloudgpu.aws.ec2.subnets import region_network, zone_names
from cloudgpu.aws.ec2.tag_search import ENABLED_EVERYWHERE, enabled_regions
from cloudgpu.aws.iam.grants import Grant
from cloudgpu.aws.iam.permission_probe import PermissionResult, denied_role_actions, inspect_profile, probe_permissions
from cloudgpu.aws.iam.role_permissions import service_role_names
from cloudgpu.aws.pricing.quotas import QuotaLimit, gpu_quotas
from cloudgpu.aws.session.server_time import ServerTime
from cloudgpu.aws.session.session import Clients, Identity, Session
from cloudgpu.backends.aws.ports import AccountClients
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError, CloudGpuError
from cloudgpu.plan.named_resources import DatasetSeen, NamedKind, Presence, ProfileSeen
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.subnets import RegionNetwork
from cloudgpu.run.containers.logins import RegistryLogin


class RegistryLogins:
    """A `FetchLogin` for ECR registries, which connects to AWS when the first login is requested."""

    def __init__(self, clients: Callable[[str], Clients], clock: Clock) -> None:
        self._clients = clients
        self._logins = EcrLogins(clock)

    def __call__(self, region: str) -> RegistryLogin:
        """Return a login for the registries of a region."""
        return RegistryLogin(*self._logins.login(self._clients(region)))


@dataclass(frozen=True)
class AwsImages:
    """Custom machine images on AWS or the rehearsal cloud, in any region."""

    cloud: AccountClients
    clock: Clock

    @property
    def time(self) -> ServerTime:
        """The time by the cloud's clock, by which costs are counted."""
        return self.cloud.time

    def found(self, region: str, name: str = "") -> Sequence[OwnImage]:
        """Return a region's images and the snapshots of deleted images: all of them, or only those named `name`."""
        clients = self.cloud.clients(region)
        images = baked_images.find_images(clients, name)
        return (*images, *baked_images.find_orphaned_snapshots(clients, name, images))

    def make(self, region: str, instance_id: str, name: str, tags: dict[str, str]) -> str:
        """Start creating an image from an instance, and return the image ID. The instance reboots."""
        return baked_images.start_image(self.cloud.clients(region), instance_id, name, tags)

    def ready(self, region: str, name: str) -> OwnImage:
        """Wait until the image is available, and return it."""
        return baked_images.wait_for_image(self.cloud.clients(region), self.clock, name)

    def end(self, image: OwnImage) -> None:
        """Delete an image and its snapshots."""
        baked_images.delete_image(self.cloud.clients(image.region), image)


@dataclass(frozen=True)
class AwsAccount:
    """Identity, permissions and quotas of an AWS account in one region."""

    session: Session

    def identity(self) -> Identity:
        """Return the caller's AWS identity."""
        return self.session.identity()

    def permission_results(self, identity: Identity, grants: Sequence[Grant]) -> Sequence[PermissionResult]:
        """Return one result for each action in the grants: whether the identity is allowed to perform the action."""
        return probe_permissions(self.session, identity, grants)

    def quotas(self) -> Sequence[QuotaLimit]:
        """Return the vCPU quotas for GPU instances."""
        return gpu_quotas(self.session)

    def service_roles(self) -> Sequence[str]:
        """Return the names of the account's service-linked roles."""
        return service_role_names(self.session)

    def network(self, request: NetworkRequest) -> RegionNetwork:
        """Return the VPC, with its subnets, that new clusters would use."""
        return region_network(self.session, request)

    def zones(self) -> Sequence[str]:
        """Return the region's zones, except local and Wavelength zones."""
        return zone_names(self.session)

    def is_region_enabled(self) -> bool | None:
        """Return False if the account has not enabled the session's region, or None if that is unknown.

        Calls in such a region fail as if the credentials were invalid, so another region is asked.
        """
        try:
            return self.session.region in enabled_regions(self.session.in_region(ENABLED_EVERYWHERE))
        except CloudGpuError:
            return None


class AwsInspector:
    """Looks up resources in one account. If the lookup of a dataset or resource fails, the result is `unknown`."""

    def __init__(self, session: Callable[[str], Session], region: str) -> None:
        self._session, self._region = session, region

    def dataset(self, url: str) -> DatasetSeen:
        """Return a summary of the objects under an S3 URL."""
        return named_resources.check_dataset(self._session(self._region), url)

    def named(self, kind: NamedKind, name: str, region: str) -> tuple[Presence, str]:
        """Return whether a named resource exists and, if unknown, the reason. Roles do not depend on the region."""
        return named_resources.check_named_resource(self._session(region or self._region), kind, name)

    def profile(self, name: str, *, session_manager: bool) -> ProfileSeen | None:
        """Return whether the caller may launch nodes with an instance profile, and what it lacks; None if not found."""
        return inspect_profile(self._session(self._region), name, session_manager=session_manager)

    def denied_role_actions(self, actions: Sequence[str], boundary_arn: str) -> tuple[str, ...]:
        """Return which of these IAM actions the caller's policies deny for cloudgpu's roles; empty if unknown."""
        return denied_role_actions(self._session(self._region), actions, boundary_arn)

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account.

        Calls in a region that is not enabled fail as if the credentials were invalid, so another region is asked then.
        """
        try:
            return enabled_regions(self._session(self._region))
        except CloudError as err:
            try:
                return enabled_regions(self._session(ENABLED_EVERYWHERE))
            except CloudError:
                raise err from None

    def service_roles(self) -> Sequence[str]:
        """Return the names of the account's service-linked roles."""
        return service_role_names(self._session(self._region))
