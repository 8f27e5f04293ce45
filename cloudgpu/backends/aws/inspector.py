"""The `Inspector` of a survey over the AWS room."""

from collections.abc import Callable, Sequence

from cloudgpu.aws.ec2 import input_checks
from cloudgpu.aws.ec2.tag_search import enabled_regions
from cloudgpu.aws.session.session import Session
from cloudgpu.plan.survey import DatasetSeen, NamedKind, Presence


class AwsInspector:
    """Looks at one account; nothing that is refused is an error here."""

    def __init__(self, session: Callable[[str], Session], region: str) -> None:
        self._session, self._region = session, region

    def dataset(self, url: str) -> DatasetSeen:
        """What lies under an address in S3."""
        return input_checks.dataset_seen(self._session(self._region), url)

    def named(self, kind: NamedKind, name: str, region: str) -> tuple[Presence, str]:
        """Whether there is such a thing, and why nobody knows; a role belongs to no region."""
        return input_checks.named_seen(self._session(region or self._region), kind, name)

    def regions(self) -> Sequence[str]:
        """Every region that the account can use."""
        return enabled_regions(self._session(self._region))
