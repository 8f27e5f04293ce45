"""The `Account` that `doctor` asks, over one AWS session."""

from collections.abc import Sequence
from dataclasses import dataclass

from cloudgpu.aws.iam.grants import Grant
from cloudgpu.aws.iam.permission_probe import Verdict, verdicts
from cloudgpu.aws.pricing.quotas import Allowance, gpu_quotas
from cloudgpu.aws.session.session import Identity, Session


@dataclass(frozen=True)
class AwsAccount:
    """Identity, permissions and quotas of one region."""

    session: Session

    def identity(self) -> Identity:
        """Who the credentials belong to.

        Raises:
            CloudError: They are not accepted, or AWS cannot be reached.
        """
        return self.session.identity()

    def verdicts(self, identity: Identity, grants: Sequence[Grant]) -> Sequence[Verdict]:
        """Which permissions that identity has."""
        return verdicts(self.session, identity, grants)

    def quotas(self) -> Sequence[Allowance]:
        """How many vCPUs of GPU instances may run.

        Raises:
            CloudError: Service Quotas refused or cannot be reached.
        """
        return gpu_quotas(self.session)
