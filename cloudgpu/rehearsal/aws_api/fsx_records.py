"""Records of Lustre file systems and their S3 links, stored on moto's EC2 backend with their network interfaces."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from cloudgpu.rehearsal.aws_api.dispatch import JsonError

_ATTRIBUTE: Final = "rehearsal_lustre"
_TRANSITION_TIME: Final = timedelta(seconds=1)
"""Time that creating or deleting a file system or link takes; on AWS it takes minutes."""


@dataclass
class Made:
    """A Lustre file system or S3 link, with its request and lifecycle."""

    id: str
    arn: str
    request: dict[str, Any]
    """Request with later updates applied; `asked` is the original request."""
    created: datetime
    tags: dict[str, str]
    asked: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    ending: datetime | None = None
    interface: str = ""

    @property
    def mount_name(self) -> str:
        """The mount name: `fsx` for `SCRATCH_1`, unique for newer deployment types."""
        deployment = (self.request.get("LustreConfiguration") or {}).get("DeploymentType", "SCRATCH_1")
        return "fsx" if deployment == "SCRATCH_1" else self.id[-9:-1]

    def lifecycle(self, now: datetime) -> str:
        """Return the FSx lifecycle state at this time."""
        if self.ending is not None:
            return "DELETING"
        if now < self.created + _TRANSITION_TIME:
            return "CREATING"
        return "FAILED" if self.failure else "AVAILABLE"


@dataclass
class Shelf:
    """The records of a region's Lustre file systems and S3 links."""

    systems: dict[str, Made] = field(default_factory=dict)
    links: dict[str, Made] = field(default_factory=dict)

    def tagged(self, arn: str) -> Made | None:
        """Return the record with this ARN, or None."""
        return next(
            (resource for resource in (*self.systems.values(), *self.links.values()) if resource.arn == arn), None
        )


def ec2_backend(name: str) -> Any:  # noqa: ANN401 - moto's backend
    """Return the EC2 backend of a region."""
    return ec2_backends[DEFAULT_ACCOUNT_ID][name]


def region_records(backend: Any, now: datetime) -> Shelf:  # noqa: ANN401 - moto's backend
    """Remove the records and interfaces of deleted resources, and return the region's remaining records."""
    shelf = backend.__dict__.get(_ATTRIBUTE)
    if not isinstance(shelf, Shelf):
        shelf = Shelf()
        backend.__dict__[_ATTRIBUTE] = shelf
    for rows in (shelf.links, shelf.systems):
        for row in [row for row in rows.values() if row.ending is not None and now >= row.ending + _TRANSITION_TIME]:
            del rows[row.id]
            backend.enis.pop(row.interface, None)
    return shelf


def region_file_systems(backend: Any) -> list[Made]:  # noqa: ANN401 - moto's backend
    """Return a region's file systems, including deleted file systems whose records have not been removed yet."""
    shelf = backend.__dict__.get(_ATTRIBUTE)
    return list(shelf.systems.values()) if isinstance(shelf, Shelf) else []


def create_record(kind: str, region: str, request: Mapping[str, Any], now: datetime, *, parent: str = "") -> Made:
    """Create the record of a `file-system` or `association`, with a new id and ARN."""
    physical_id = f"{'fs' if kind == 'file-system' else 'dra'}-{secrets.token_hex(8)}0"
    path = f"{parent}/{physical_id}" if parent else physical_id
    arn = f"arn:aws:fsx:{region}:{DEFAULT_ACCOUNT_ID}:{kind}/{path}"
    return Made(physical_id, arn, dict(request), now, tags_to_dict(request.get("Tags")), dict(request))


def system(shelf: Shelf, name: str) -> Made:
    """Return a file system by its id."""
    if name not in shelf.systems:
        raise JsonError("FileSystemNotFound", f"File system '{name}' does not exist.")
    return shelf.systems[name]


def find_earlier_result(rows: Mapping[str, Made], params: Mapping[str, Any]) -> Made | None:
    """Return the resource that an earlier call with the same client token created, or None."""
    token = params.get("ClientRequestToken")
    for resource in rows.values() if token else ():
        if resource.request.get("ClientRequestToken") == token:
            if dict(params) != resource.asked:
                raise JsonError("IncompatibleParameterError", "The token was used with other parameters.")
            return resource
    return None


def described_tags(resource: Made) -> dict[str, list[dict[str, str]]]:
    """Return the `Tags` member of a description. FSx's service model allows no empty list of tags."""
    tags = [{"Key": key, "Value": value} for key, value in resource.tags.items()]
    return {"Tags": tags} if tags else {}


def tags_to_dict(tags: Any) -> dict[str, str]:  # noqa: ANN401 - wire data
    """Return tags as a mapping."""
    return {str(tag["Key"]): str(tag.get("Value", "")) for tag in tags or ()}
