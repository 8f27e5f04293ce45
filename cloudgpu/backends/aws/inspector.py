"""AWS implementation of the `Inspector` interface."""

from collections.abc import Callable, Sequence

from cloudgpu.aws.ec2 import input_checks
from cloudgpu.aws.ec2.tag_search import ENABLED_EVERYWHERE, enabled_regions
from cloudgpu.aws.iam.passed_profile import denied_role_actions, inspect_profile
from cloudgpu.aws.iam.service_roles import service_role_names
from cloudgpu.aws.session.session import Session
from cloudgpu.errors import CloudError
from cloudgpu.plan.named_resources import DatasetSeen, NamedKind, Presence, ProfileSeen


class AwsInspector:
    """Looks up resources in one account. If the lookup of a dataset or resource fails, the result is `unknown`."""

    def __init__(self, session: Callable[[str], Session], region: str) -> None:
        self._session, self._region = session, region

    def dataset(self, url: str) -> DatasetSeen:
        """Return a summary of the objects under an S3 URL."""
        return input_checks.check_dataset(self._session(self._region), url)

    def named(self, kind: NamedKind, name: str, region: str) -> tuple[Presence, str]:
        """Return whether a named resource exists and, if unknown, the reason. Roles do not depend on the region."""
        return input_checks.check_named_resource(self._session(region or self._region), kind, name)

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
