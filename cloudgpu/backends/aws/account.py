"""AWS implementation of the `AccountQueries` interface, which `doctor` uses."""

from collections.abc import Sequence
from dataclasses import dataclass

from cloudgpu.aws.iam.grants import Grant
from cloudgpu.aws.iam.permission_probe import PermissionResult, probe_permissions
from cloudgpu.aws.pricing.quotas import QuotaLimit, gpu_quotas
from cloudgpu.aws.session.session import Identity, Session


@dataclass(frozen=True)
class AwsAccount:
    """Identity, permissions and quotas of an AWS account in one region."""

    session: Session

    def identity(self) -> Identity:
        """Return the identity behind the credentials.

        Raises:
            CloudError: The credentials are invalid or AWS is unreachable.
        """
        return self.session.identity()

    def permission_results(self, identity: Identity, grants: Sequence[Grant]) -> Sequence[PermissionResult]:
        """Return whether the identity has each permission in the grants."""
        return probe_permissions(self.session, identity, grants)

    def quotas(self) -> Sequence[QuotaLimit]:
        """Return the vCPU quotas for GPU instances.

        Raises:
            CloudError: The Service Quotas request failed or AWS is unreachable.
        """
        return gpu_quotas(self.session)
