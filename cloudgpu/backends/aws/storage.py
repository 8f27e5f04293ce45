"""The `StorageCloud` of the use cases over the AWS room."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cloudgpu.aws.ec2.volumes import attach
from cloudgpu.aws.session.session import Session
from cloudgpu.aws.storage import discovery
from cloudgpu.aws.storage.buckets import empty
from cloudgpu.aws.storage.stored import MADE_FOR, Stored
from cloudgpu.backends.aws.engines import Engines
from cloudgpu.clock import Clock
from cloudgpu.engine.base import Engine
from cloudgpu.plan.plan import Target
from cloudgpu.state.storage_records import StorageRecord


class Regions(Protocol):
    """The account that storage is made in, region by region."""

    target: Target
    endpoint: str

    def account(self) -> str:
        """Account id of the credentials in use."""

    def clients(self, region: str) -> Session:
        """Clients of a region."""


@dataclass(frozen=True)
class AwsStorage:
    """Storage of AWS, or of what stands in for it, in every region that is asked for."""

    cloud: Regions
    engines: Engines
    clock: Clock

    @property
    def target(self) -> Target:
        """`aws` or `rehearsal`."""
        return self.cloud.target

    @property
    def endpoint(self) -> str:
        """What tells this endpoint from others of the same account id; empty for the real AWS."""
        return self.cloud.endpoint

    def account(self) -> str:
        """Account id of the credentials in use."""
        return self.cloud.account()

    @property
    def engine_asked_for(self) -> str:
        """The engine that the user named; empty when nobody did."""
        return self.engines.asked_for

    def engine(self, record: StorageRecord) -> Engine:
        """The engine that this storage was begun with, with its tags and identity.

        Raises:
            UsageError: It is the Pulumi CLI, and there is none.
        """
        return self.engines.engine(record, storage_tags(record))

    def found(self, region: str, name: str = "") -> Sequence[Stored]:
        """What carries storage's tags in a region: of one name, or of every name."""
        return discovery.stored(self.cloud.clients(region), name)

    def empty(self, one: Stored) -> None:
        """Delete what its bucket holds, where it has one."""
        for part in one.parts:
            if part.kind == "s3":
                empty(self.cloud.clients(one.region), part.id)

    def end(self, one: Stored) -> list[str]:
        """End every part, data included; returns a line for each that would not end."""
        return discovery.end(self.cloud.clients(one.region), one, self.clock)

    def attach(self, region: str, volume_id: str, instance_id: str, number: int) -> None:
        """Attach a volume, the so-maniest of this instance; attached already, it is left alone."""
        attach(self.cloud.clients(region), self.clock, volume_id, instance_id, number)


def storage_tags(record: StorageRecord) -> Mapping[str, str]:
    """The tags on everything of it. No cluster's tag is among them: no cluster's end touches it."""
    return {
        "cloudgpu:storage": record.name,
        "cloudgpu:kind": record.kind,
        "cloudgpu:owner": record.owner,
        "cloudgpu:team": record.team,
        "cloudgpu:keep": "false" if record.disposable else "true",
        "cloudgpu:token": record.token,
        **({MADE_FOR: record.made_for} if record.made_for else {}),
    }
