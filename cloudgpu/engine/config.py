"""Build the settings of the Pulumi programs in `infra/`, including the permissions of the nodes' role."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cloudgpu.errors import RecipeError, StateError, UsageError
from cloudgpu.files import parse_json
from cloudgpu.recipe.sources import Source, source_of
from cloudgpu.settings import Settings
from cloudgpu.settings.tags import tags_text
from cloudgpu.text import printable

if TYPE_CHECKING:
    from cloudgpu.plan.plan import Candidate
    from cloudgpu.recipe.schema import Recipe


NAMEABLE: Final = frozenset(
    {
        "createVpc",
        "expirySchedule",
        "instanceProfile",
        "keyName",
        "kmsKeyId",
        "permissionsBoundary",
        "reach",
        "roleName",
        "scheduleRoleArn",
        "securityGroupId",
        "subnetId",
        "tags",
        "vpcId",
    }
)
"""Program settings that users may set: existing resources to use instead of new ones, and optional features."""


_SHOWN = 100

ListItem = str | tuple[str, ...]
"""An item of a setting that is a list."""
_RUN = "{run}"


def list_setting(items: Sequence[ListItem]) -> str:
    """Return a list as the text of a program setting, empty if the list is empty.

    Lists are JSON, because every separator may be part of an item: an S3 key may contain a comma.
    """
    return json.dumps(items) if items else ""


def read_list_setting(text: str) -> tuple[ListItem, ...]:
    """Read a list from a recorded program setting. Version 0.1.0 separated the items by commas."""
    if not text.startswith("["):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        items = parse_json(text)
    except ValueError as err:
        message = f"a recorded setting of the infrastructure program is not a list: {printable(text[:_SHOWN])}"
        raise StateError(message, hint="delete the cluster with `cloudgpu down`, and create it again") from err
    return tuple(tuple(map(str, item)) if isinstance(item, list) else str(item) for item in items)


def stack_config(  # one argument per program setting; grouping them would only rename them
    *,
    cluster: str,
    owner: str,
    team: str,
    run: str,
    expires_at: datetime,
    token: str,
    candidate: "Candidate",
    nodes: int,
    public_key: str,
    ssh_cidr: str,
    disk_gib: int,
    program_settings: Mapping[str, str] | None = None,
    bootstrap: str = "",
    grants: Mapping[str, str] | None = None,
    efa_layout: str = "separate",
    tags_in_call: bool = False,
) -> dict[str, str]:
    """Return the settings for `Stack.config`.

    `program_settings` are settings from `NAMEABLE` that the user chose; `grants` contains settings with the permissions
    of the nodes' role. `tags_in_call` tells whether the engine tags the instances in the launch call, as the direct
    engine does.
    """
    program_settings = {key: value for key, value in (program_settings or {}).items() if value}
    unknown = sorted(set(program_settings) - NAMEABLE)
    if unknown:
        message = f"the cluster program has no setting {', '.join(unknown)}"
        raise UsageError(message, hint=f"use one of {', '.join(sorted(NAMEABLE))}")
    derived = {
        "publicAddress": "" if candidate.public_address == "auto" else candidate.public_address,
        "reservation": candidate.reservation,
        "efaLayout": efa_layout if candidate.efa_interfaces > 1 else "",
        "tagsInCall": "true" if tags_in_call else "",
        "chosenSubnetId": "" if program_settings.get("subnetId") else candidate.subnet,
        "bootstrap": bootstrap,
        **(grants or {}),
    }
    config = {
        "cluster": cluster,
        "owner": owner,
        "team": team,
        "run": run,
        "expiresAt": expires_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "token": token,
        "instanceType": candidate.instance_type,
        "nodes": str(nodes),
        "zone": candidate.zone,
        "market": candidate.market,
        "publicKey": public_key,
        "sshCidr": ssh_cidr,
        "image": candidate.image,
        "diskGib": str(disk_gib),
        "efaInterfaces": str(candidate.efa_interfaces),
    }
    return {**config, **program_settings, **{key: value for key, value in derived.items() if value}}


def cluster_program_config(settings: Settings) -> dict[str, str]:
    """Return the cluster program's configuration for existing resources, omitting settings that have no value."""
    named = {
        "reach": "" if settings.reach == "direct" else settings.reach,
        "vpcId": settings.vpc_id,
        "createVpc": "true" if settings.create_vpc else "",
        "subnetId": settings.subnet_id,
        "securityGroupId": settings.security_group_id,
        "permissionsBoundary": settings.permissions_boundary,
        "roleName": "" if settings.instance_profile else settings.role_name,
        "instanceProfile": settings.instance_profile,
        "scheduleRoleArn": settings.expiry_schedule_role,
        "keyName": settings.key_name,
        "kmsKeyId": settings.kms_key_id,
        "tags": tags_text(settings.tags),
        "expirySchedule": "" if settings.expiry_schedule else "false",
    }
    return {name: value for name, value in named.items() if value}


def storage_program_config(settings: Settings) -> dict[str, str]:
    """Return the storage program's configuration for existing resources, omitting settings that have no value."""
    named = {
        "vpcId": settings.vpc_id,
        "subnetIds": list_setting([settings.subnet_id] if settings.subnet_id else []),
        "clientSecurityGroupIds": list_setting([settings.security_group_id] if settings.security_group_id else []),
        "kmsKeyId": settings.kms_key_id,
        "tags": tags_text(settings.tags),
    }
    return {name: value for name, value in named.items() if value}


@dataclass(frozen=True)
class RoleGrants:
    """The S3 locations that the nodes' role may read and write.

    A location is `bucket/prefix` or, if the prefix contains IDs of runs that are not known yet, the tuple of the parts
    between these IDs.
    """

    readable: tuple[ListItem, ...] = ()
    writable: tuple[ListItem, ...] = ()

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> "RoleGrants":
        """Read the cluster program's settings, also as version 0.1.0 wrote them."""
        return cls(read_list_setting(config.get("readable", "")), read_list_setting(config.get("writable", "")))

    def union(self, other: "RoleGrants") -> "RoleGrants":
        """Return the locations of both, without duplicates."""
        return RoleGrants(_distinct((*self.readable, *other.readable)), _distinct((*self.writable, *other.writable)))

    def covers(self, other: "RoleGrants") -> bool:
        """Return True if a role with these grants has the permissions that `other` needs."""
        return all(
            any(_contains(granted, required) for granted in here)
            for here, there in ((self.readable, other.readable), (self.writable, other.writable))
            for required in there
        )

    @property
    def config(self) -> dict[str, str]:
        """The cluster program's settings; an empty text grants nothing."""
        return {"readable": list_setting(self.readable), "writable": list_setting(self.writable)}


def role_grants(recipe: "Recipe", run_id: str = "") -> RoleGrants:
    """Return the permissions that a recipe's nodes need: only for this run or, without an ID, for any run.

    Pulling container images needs no permissions, because the caller provides the nodes' registry credentials.
    """
    targets = (recipe.checkpoint.to if recipe.checkpoint else None, recipe.outputs_to)
    try:
        sources = [(data, source_of(data.source)) for data in recipe.data if data.endpoint is None]
        uploads = [_upload_location(to, run_id) for to in targets if to]
    except ValueError as err:
        raise RecipeError(str(err), hint="correct the URL in the recipe") from err
    in_s3 = [(data, _location(source)) for data, source in sources if source.kind == "s3"]
    written = [location for data, location in in_s3 if data.writable]
    return RoleGrants(_distinct(location for _, location in in_s3), _distinct((*uploads, *written)))


def _location(source: Source) -> str:
    return f"{source.place}/{source.path}" if source.path else source.place


def _upload_location(to: str, run_id: str) -> ListItem:
    source = source_of(to)  # with the placeholder, which no bucket name may contain
    if source.kind != "s3":
        message = f"{to}: expected an S3 URL"
        raise ValueError(message)
    location = _location(source)
    parts = [location.replace(_RUN, run_id)] if run_id else location.split(_RUN)
    return parts[0] if len(parts) == 1 else tuple(parts)


def _contains(granted: ListItem, required: ListItem) -> bool:
    """Return True if a location is the other one or a directory above it."""
    above = granted if isinstance(granted, str) else ""
    start = required if isinstance(required, str) else "".join(required[:1])
    return granted == required or bool(above and start.startswith(above.rstrip("/") + "/"))


def _distinct(locations: Iterable[ListItem]) -> tuple[ListItem, ...]:
    return tuple(dict.fromkeys(locations))
