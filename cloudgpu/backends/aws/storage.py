"""Implement `StorageCloud` with AWS."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cloudgpu.aws.ec2.volumes import attach
from cloudgpu.aws.session.session import Session
from cloudgpu.aws.storage import discovery
from cloudgpu.aws.storage.buckets import empty
from cloudgpu.aws.storage.storage_tags import MADE_FOR, Stored
from cloudgpu.backends.aws.engines import Engines
from cloudgpu.clock import Clock
from cloudgpu.engine.base import Engine
from cloudgpu.plan.plan import Target
from cloudgpu.state.storage_records import StorageRecord


class Regions(Protocol):
    """The regions of the account that owns the storage."""

    target: Target
    endpoint: str

    def account(self) -> str:
        """Return the account ID of the credentials in use."""

    def clients(self, region: str) -> Session:
        """Return the API clients of a region."""


@dataclass(frozen=True)
class AwsStorage:
    """Storage of AWS or the rehearsal cloud, in any region."""

    cloud: Regions
    engines: Engines
    clock: Clock

    @property
    def target(self) -> Target:
        """`aws` or `rehearsal`."""
        return self.cloud.target

    @property
    def endpoint(self) -> str:
        """Distinguishes this endpoint from others with the same account ID; empty for AWS."""
        return self.cloud.endpoint

    def account(self) -> str:
        """Return the account ID of the credentials in use."""
        return self.cloud.account()

    @property
    def engine_asked_for(self) -> str:
        """Engine selected by the user; empty if none was."""
        return self.engines.asked_for

    def engine(self, record: StorageRecord) -> Engine:
        """Return the engine that created the storage, with the storage's tags and identity.

        Raises:
            UsageError: The engine is Pulumi, and the Pulumi CLI is not installed.
        """
        return self.engines.engine(record, storage_tags(record))

    def found(self, region: str, name: str = "") -> Sequence[Stored]:
        """Return the resources with storage tags in a region, of one name or of all."""
        return discovery.stored(self.cloud.clients(region), name)

    def empty(self, stored: Stored) -> None:
        """Delete what its bucket holds, where it has one."""
        for part in stored.parts:
            if part.kind == "s3":
                empty(self.cloud.clients(stored.region), part.id)

    def end(self, stored: Stored) -> list[str]:
        """End every part, data included; returns a line for each that would not end."""
        return discovery.end(self.cloud.clients(stored.region), stored, self.clock)

    def attach(self, region: str, volume_id: str, instance_id: str, number: int) -> None:
        """Attach a volume to an instance as its `number`th. Does nothing if it is already attached."""
        attach(self.cloud.clients(region), self.clock, volume_id, instance_id, number)


def storage_tags(record: StorageRecord) -> Mapping[str, str]:
    """Return the tags for every resource of a storage.

    No cluster tag is among them, so deleting a cluster does not affect it.
    """
    return {
        "cloudgpu:storage": record.name,
        "cloudgpu:kind": record.kind,
        "cloudgpu:owner": record.owner,
        "cloudgpu:team": record.team,
        "cloudgpu:keep": "false" if record.disposable else "true",
        "cloudgpu:token": record.token,
        **({MADE_FOR: record.made_for} if record.made_for else {}),
    }
