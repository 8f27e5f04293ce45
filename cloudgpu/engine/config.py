"""Build the settings of the Pulumi programs in `infra/`, including existing resources and the user's tags."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cloudgpu.errors import StateError, UsageError
from cloudgpu.files import parse_json
from cloudgpu.settings import Settings
from cloudgpu.settings.tags import tags_text
from cloudgpu.text import printable

if TYPE_CHECKING:
    # Importing plans would slow down commands that only read records.
    from cloudgpu.plan.plan import Candidate


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
    existing: Mapping[str, str] | None = None,
    bootstrap: str = "",
    grants: Mapping[str, str] | None = None,
    efa_layout: str = "separate",
    tags_in_call: bool = False,
) -> dict[str, str]:
    """Return the settings for `Stack.config`.

    `tags_in_call` tells whether the engine tags the instances in the launch call, as the direct engine does. `existing`
    contains settings from `NAMEABLE`; `grants` contains settings with the permissions of the nodes' role.
    """
    chosen = {key: value for key, value in (existing or {}).items() if value}
    unknown = sorted(set(chosen) - NAMEABLE)
    if unknown:
        message = f"the cluster program has no setting {', '.join(unknown)}"
        raise UsageError(message, hint=f"use one of {', '.join(sorted(NAMEABLE))}")
    derived = {
        "publicAddress": "" if candidate.public_address == "auto" else candidate.public_address,
        "reservation": candidate.reservation,
        "efaLayout": efa_layout if candidate.efa_interfaces > 1 else "",
        "tagsInCall": "true" if tags_in_call else "",
        "chosenSubnetId": "" if (existing or {}).get("subnetId") else candidate.subnet,
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
    return {**config, **chosen, **{key: value for key, value in derived.items() if value}}


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
