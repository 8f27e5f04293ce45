"""AWS implementation of the `AccountQueries` interface, which `doctor` uses."""

from collections.abc import Sequence
from dataclasses import dataclass

from cloudgpu.aws.ec2.subnets import region_network, zone_names
from cloudgpu.aws.ec2.tag_search import ENABLED_EVERYWHERE, enabled_regions
from cloudgpu.aws.iam.grants import Grant
from cloudgpu.aws.iam.permission_probe import PermissionResult, probe_permissions
from cloudgpu.aws.iam.service_roles import service_role_names
from cloudgpu.aws.pricing.quotas import QuotaLimit, gpu_quotas
from cloudgpu.aws.session.session import Identity, Session
from cloudgpu.errors import CloudGpuError
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.subnets import RegionNetwork


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
