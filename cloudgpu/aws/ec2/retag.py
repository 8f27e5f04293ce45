"""Change the tags of instances, volumes and interfaces, many per call."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from cloudgpu.aws.ec2.tagging import listed
from cloudgpu.aws.session.errors import typed
from cloudgpu.aws.session.session import Clients

LAUNCHED: Final = frozenset({"instance", "volume", "network-interface"})
"""Kinds that the launch tags and no resource of the program stands for."""
_AT_ONCE = 500
"""EC2 takes a thousand ids a call."""


class TaggedEc2Resource(Protocol):
    """An EC2 resource with its tags."""

    @property
    def kind(self) -> str:
        """Resource type: `instance`, `volume` ..."""

    @property
    def id(self) -> str:
        """Resource ID."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags as last read."""


def relabel(clients: Clients, found: Sequence[TaggedEc2Resource], tags: Mapping[str, str]) -> None:
    """Set these tags on the launched things among them that do not have them yet.

    Raises:
        CloudError: AWS refused or cannot be reached.
    """
    ids = sorted(
        resource.id
        for resource in found
        if resource.kind in LAUNCHED and not tags.items() <= dict(resource.tags).items()
    )
    for start in range(0, len(ids), _AT_ONCE):
        chunk = ids[start : start + _AT_ONCE]
        with typed(f"tagging {len(chunk)} things"):
            clients.client("ec2").create_tags(Resources=chunk, Tags=listed(tags))
