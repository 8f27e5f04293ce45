"""Eventual consistency: neither the first calls nor a tag search find a new resource immediately."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl

from cloudgpu.clock import Clock
from cloudgpu.rehearsal.aws_api.dispatch import AwsError
from cloudgpu.rehearsal.aws_api.ec2 import instance_store
from cloudgpu.rehearsal.aws_api.ec2.launch_request import MergedLaunchRequest
from cloudgpu.rehearsal.faults.api_faults import ActiveConditions
from cloudgpu.rehearsal.server.error_responses import not_found_message

_CODES: Mapping[str, str] = {
    "i": "InvalidInstanceID.NotFound",
    "vol": "InvalidVolume.NotFound",
    "eni": "InvalidNetworkInterfaceID.NotFound",
    "sg": "InvalidGroup.NotFound",
    "vpc": "InvalidVpcID.NotFound",
    "subnet": "InvalidSubnetID.NotFound",
    "igw": "InvalidInternetGatewayID.NotFound",
    "rtb": "InvalidRouteTableID.NotFound",
    "lt": "InvalidLaunchTemplateId.NotFound",
    "eipalloc": "InvalidAllocationID.NotFound",
    "nat": "NatGatewayNotFound",
    "vpce": "InvalidVpcEndpointId.NotFound",
}
_PREFIX_BY_ACTION: Mapping[str, str] = {
    "RunInstances": "i",
    "CreateFleet": "i",
    "CreateVolume": "vol",
    "CreateNetworkInterface": "eni",
    "CreateSecurityGroup": "sg",
    "CreateVpc": "vpc",
    "CreateSubnet": "subnet",
    "CreateInternetGateway": "igw",
    "CreateRouteTable": "rtb",
    "CreateLaunchTemplate": "lt",
    "AllocateAddress": "eipalloc",
    "CreateNatGateway": "nat",
    "CreateVpcEndpoint": "vpce",
}
_NAMED: Mapping[str, str] = {
    "CreateKeyPair": "KeyName",
    "ImportKeyPair": "KeyName",
    "CreatePlacementGroup": "GroupName",
}
"""Create action -> parameter with the name by which launches refer to the new resource."""


def record_new_resources(
    behaviour: ActiveConditions, action: str, params: Mapping[str, Any], body: str | bytes
) -> None:
    """Record the names and the ids of the new resources in a create call and its response."""
    if not (behaviour.now.unseen_calls or behaviour.now.unseen_launches):
        return
    if action in _NAMED:
        behaviour.made(str(params.get(_NAMED[action]) or ""))
    prefix = _PREFIX_BY_ACTION.get(action)
    if prefix is None:
        return
    text = body.decode() if isinstance(body, bytes) else body
    for resource_id in set(re.findall(rf">({prefix}-[0-9a-f]{{8,17}})<", text)):
        behaviour.made(resource_id)


def reject_invisible(behaviour: ActiveConditions, params: Any) -> None:  # noqa: ANN401 - wire data
    """Reject a call that refers to a resource that is not visible yet."""
    if not behaviour.now.unseen_calls:
        return
    for text in dict.fromkeys(_texts(params)):
        code = _CODES.get(text.partition("-")[0])
        if code and behaviour.unseen(text):
            raise AwsError(code, not_found_message(code, [text]))


def invisible_in_launch(behaviour: ActiveConditions, request: MergedLaunchRequest) -> AwsError | None:
    """Count a fleet launch and return the error of the first resource that it cannot find yet, or None.

    As in a fleet's `Errors`, only what the launch template and the override name counts, not the template itself.
    """
    if not behaviour.now.unseen_launches:
        return None
    groups = [*request.group_ids, *(str(name) for row in request.interfaces for name in row.get("Groups") or [])]
    errors = {
        **{name: AwsError("InvalidGroup.NotFound", f"The security group '{name}' does not exist") for name in groups},
        request.subnet_id: AwsError("InvalidSubnetID.NotFound", f"The subnet ID '{request.subnet_id}' does not exist"),
        request.key_name: AwsError("InvalidKeyPair.NotFound", f"The key pair '{request.key_name}' does not exist"),
        request.placement_group: AwsError(
            "InvalidPlacementGroup.Unknown", f"The Placement Group '{request.placement_group}' is unknown."
        ),
    }
    unseen = [error for name, error in errors.items() if behaviour.unseen_in_launch(name)]
    return unseen[0] if unseen else None


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - wire data
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


class SearchLag:
    """A record of when each resource was first tagged. Callers must hold the simulated cloud's lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[tuple[str, str], float] = {}

    def note(self) -> None:
        """Record which resources have tags now. Call this after every API call that may have tagged a resource."""
        now = self._clock.monotonic()
        tagged = [(str(backend.region_name), name) for backend in instance_store.backends() for name in backend.tags]
        self._since = {key: self._since.get(key, now) for key in tagged}

    @contextmanager
    def hide_recent_tags(self, body: bytes, lag_s: float) -> Iterator[None]:
        """If the request is a tag search, hide the tags of resources first tagged less than `lag_s` seconds ago.

        The tags are restored when the context exits.
        """
        hidden = self._hide(lag_s) if lag_s > 0 and _searches_by_tag(body) else []
        try:
            yield
        finally:
            for backend, name, tags in hidden:
                backend.tags[name] = tags

    def _hide(self, lag_s: float) -> list[tuple[Any, str, Any]]:
        before = self._clock.monotonic() - lag_s
        young = {key for key, since in self._since.items() if since > before}
        return [
            (backend, name, backend.tags.pop(name))
            for backend in instance_store.backends()
            for name in list(backend.tags)
            if (str(backend.region_name), name) in young
        ]


def _searches_by_tag(body: bytes) -> bool:
    fields = parse_qsl(body.decode(errors="replace"))
    names = (value for name, value in fields if name.startswith("Filter.") and name.endswith(".Name"))
    return any(name == "tag-key" or name.startswith("tag:") for name in names)
