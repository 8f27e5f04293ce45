"""Implement the `Account` of `doctor` with an AWS session."""

from collections.abc import Sequence
from dataclasses import dataclass

from cloudgpu.aws.iam.grants import Grant
from cloudgpu.aws.iam.permission_probe import PermissionResult, verdicts
from cloudgpu.aws.pricing.quotas import Allowance, gpu_quotas
from cloudgpu.aws.session.session import Identity, Session


@dataclass(frozen=True)
class AwsAccount:
    """Identity, permissions and quotas in one region."""

    session: Session

    def identity(self) -> Identity:
        """Return the identity behind the credentials.

        Raises:
            CloudError: The credentials are not accepted, or AWS cannot be reached.
        """
        return self.session.identity()

    def verdicts(self, identity: Identity, grants: Sequence[Grant]) -> Sequence[PermissionResult]:
        """Return whether the identity has each permission."""
        return verdicts(self.session, identity, grants)

    def quotas(self) -> Sequence[Allowance]:
        """Return the vCPU quotas for GPU instances.

        Raises:
            CloudError: Service Quotas refused or cannot be reached.
        """
        return gpu_quotas(self.session)
