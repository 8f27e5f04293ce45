"""Add missing tags to instances, volumes and network interfaces, in batches."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from cloudgpu.aws.ec2.tagging import to_tag_list
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.session import Clients

LAUNCHED_KINDS: Final = frozenset({"instance", "volume", "network-interface"})
"""Types of resources that EC2 creates and tags during a launch. The Pulumi program does not declare them."""
_AT_ONCE = 500
"""Resources per call; EC2 accepts up to 1,000."""


class TaggedEc2Resource(Protocol):
    """An EC2 resource with its tags."""

    @property
    def kind(self) -> str:
        """Resource type, such as `instance` or `volume`."""

    @property
    def id(self) -> str:
        """Resource ID."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags at the time of the last query."""


def add_missing_tags(clients: Clients, resources: Sequence[TaggedEc2Resource], tags: Mapping[str, str]) -> None:
    """Set the tags on every resource of a type in `LAUNCHED_KINDS` that lacks a tag or has a different value for it."""
    ids = sorted(
        resource.id
        for resource in resources
        if resource.kind in LAUNCHED_KINDS and not tags.items() <= dict(resource.tags).items()
    )
    for start in range(0, len(ids), _AT_ONCE):
        chunk = ids[start : start + _AT_ONCE]
        with convert_errors(f"tagging {chunk[0] if len(chunk) == 1 else f'{len(chunk)} resources'}"):
            clients.client("ec2").create_tags(Resources=chunk, Tags=to_tag_list(tags))
