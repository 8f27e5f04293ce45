"""AWS implementation of the `Inspector` interface."""

from collections.abc import Callable, Sequence

from cloudgpu.aws.ec2 import input_checks
from cloudgpu.aws.ec2.tag_search import enabled_regions
from cloudgpu.aws.session.session import Session
from cloudgpu.plan.named_resources import DatasetSeen, NamedKind, Presence


class AwsInspector:
    """Looks up resources in one account. A rejected request yields `unknown` instead of an error."""

    def __init__(self, session: Callable[[str], Session], region: str) -> None:
        self._session, self._region = session, region

    def dataset(self, url: str) -> DatasetSeen:
        """Return a summary of the objects under an S3 URL."""
        return input_checks.check_dataset(self._session(self._region), url)

    def named(self, kind: NamedKind, name: str, region: str) -> tuple[Presence, str]:
        """Return whether a named resource exists and, if unknown, the reason. Roles do not depend on the region."""
        return input_checks.check_named_resource(self._session(region or self._region), kind, name)

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account."""
        return enabled_regions(self._session(self._region))
