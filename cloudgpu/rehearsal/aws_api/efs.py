"""EFS: moto's implementation, without the members that it adds to descriptions and AWS does not have."""

import json
from typing import Any, Final

from moto.core.exceptions import JsonRESTError
from moto.efs.responses import EFSResponse

from cloudgpu.rehearsal.aws_api.iam_service import EFS, is_missing
from cloudgpu.rehearsal.faults.active_conditions import ActiveConditions

Response = tuple[str, dict[str, str | int]]
_MOTO_MEMBERS: Final = ("LifecyclePolicies", "SecurityGroups")
"""Settings of file systems and mount targets, which AWS returns from operations of their own."""


class NotAuthorizedError(JsonRESTError):
    """EFS's error for a call that the caller may not make; it does not name the action."""

    code = 403

    def __init__(self) -> None:
        """Create the error."""
        message = "User is not authorized to perform that action on the specified resource"
        super().__init__("AccessDeniedException", message)


class StrictEfs(EFSResponse):
    """A handler for one EFS request."""

    def create_file_system(self) -> Response:
        """Create a file system and describe it."""
        return _described(super().create_file_system())

    def describe_file_systems(self) -> Response:
        """Describe file systems."""
        return _described(super().describe_file_systems())

    def __init__(self, behaviour: ActiveConditions) -> None:
        """Create a handler."""
        super().__init__()
        self._behaviour = behaviour

    def create_mount_target(self) -> Response:
        """Create a mount target and describe it. Without groups, it gets the default group of its VPC."""
        if is_missing(self._behaviour, EFS):
            raise NotAuthorizedError
        response = super().create_mount_target()
        target = self.efs_backend.mount_targets_by_id[json.loads(response[0])["MountTargetId"]]
        if target.security_groups is None:
            groups = self.efs_backend.ec2_backend.enis[target.network_interface_id].group_set
            target.security_groups = [group.id for group in groups]
        return _described(response)

    def describe_mount_targets(self) -> Response:
        """Describe mount targets."""
        return _described(super().describe_mount_targets())


def _described(response: Response) -> Response:
    body, headers = response
    value: dict[str, Any] = json.loads(body)
    for description in (value, *value.get("FileSystems", ()), *value.get("MountTargets", ())):
        for name in _MOTO_MEMBERS:
            description.pop(name, None)
    return json.dumps(value), headers
