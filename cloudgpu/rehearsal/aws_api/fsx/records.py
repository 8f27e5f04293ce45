"""Lustre file systems and their links to S3. Kept on moto's EC2 back end, beside the interfaces they stand on."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from cloudgpu.rehearsal.aws_api.json_service import JsonError

_ATTRIBUTE: Final = "rehearsal_lustre"
_TAKES: Final = timedelta(seconds=1)
"""How long a file system or a link takes to come and to go; minutes on AWS."""


@dataclass
class Made:
    """A file system or a link: what it was asked for with, and where it is in its life."""

    id: str
    arn: str
    request: dict[str, Any]
    """As it stands now; `asked` is what the creating call said."""
    created: datetime
    tags: dict[str, str]
    asked: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    ending: datetime | None = None
    interface: str = ""

    @property
    def mount_name(self) -> str:
        """Old scratch file systems are all called `fsx`; newer ones have a name of their own."""
        deployment = (self.request.get("LustreConfiguration") or {}).get("DeploymentType", "SCRATCH_1")
        return "fsx" if deployment == "SCRATCH_1" else self.id[-9:-1]

    def lifecycle(self, now: datetime) -> str:
        """As FSx names it."""
        if self.ending is not None:
            return "DELETING"
        if now < self.created + _TAKES:
            return "CREATING"
        return "FAILED" if self.failure else "AVAILABLE"


@dataclass
class Shelf:
    """Everything of one region."""

    systems: dict[str, Made] = field(default_factory=dict)
    links: dict[str, Made] = field(default_factory=dict)

    def tagged(self, arn: str) -> Made | None:
        """What has this ARN."""
        return next((one for one in (*self.systems.values(), *self.links.values()) if one.arn == arn), None)


def region_of(name: str) -> Any:  # noqa: ANN401 - moto's back end
    """EC2 of one region."""
    return ec2_backends[DEFAULT_ACCOUNT_ID][name]


def shelf_of(backend: Any, now: datetime) -> Shelf:  # noqa: ANN401 - moto's back end
    """What is there; what has ended meanwhile is taken away with its interface."""
    found = backend.__dict__.get(_ATTRIBUTE)
    if not isinstance(found, Shelf):
        found = Shelf()
        backend.__dict__[_ATTRIBUTE] = found
    for rows in (found.links, found.systems):
        for one in [one for one in rows.values() if one.ending is not None and now >= one.ending + _TAKES]:
            del rows[one.id]
            backend.enis.pop(one.interface, None)
    return found


def systems_of(backend: Any) -> list[Made]:  # noqa: ANN401 - moto's back end
    """The file systems of a region as last told."""
    found = backend.__dict__.get(_ATTRIBUTE)
    return list(found.systems.values()) if isinstance(found, Shelf) else []


def new(kind: str, region: str, request: Mapping[str, Any], now: datetime, *, parent: str = "") -> Made:
    """A new `file-system` or `association`, with an id and an ARN of its own."""
    physical_id = f"{'fs' if kind == 'file-system' else 'dra'}-{secrets.token_hex(8)}0"
    place = f"{parent}/{physical_id}" if parent else physical_id
    arn = f"arn:aws:fsx:{region}:{DEFAULT_ACCOUNT_ID}:{kind}/{place}"
    return Made(physical_id, arn, dict(request), now, mapped(request.get("Tags")), dict(request))


def system(shelf: Shelf, name: str) -> Made:
    """A file system by its id.

    Raises:
        JsonError: There is none.
    """
    if name not in shelf.systems:
        raise JsonError("FileSystemNotFound", f"File system '{name}' does not exist.")
    return shelf.systems[name]


def repeated(rows: Mapping[str, Made], params: Mapping[str, Any]) -> Made | None:
    """What this token has made already.

    Raises:
        JsonError: The token came with other parameters.
    """
    token = params.get("ClientRequestToken")
    for one in rows.values() if token else ():
        if one.request.get("ClientRequestToken") == token:
            if dict(params) != one.asked:
                raise JsonError("IncompatibleParameterError", "The token was used with other parameters.")
            return one
    return None


def mapped(tags: Any) -> dict[str, str]:  # noqa: ANN401 - wire data
    """Tags as a mapping."""
    return {str(tag["Key"]): str(tag.get("Value", "")) for tag in tags or ()}
