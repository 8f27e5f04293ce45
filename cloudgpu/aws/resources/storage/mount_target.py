"""`aws:efs/mountTarget:MountTarget`: the endpoint of a file system in one subnet."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.resources.base import HandlerContext, Properties
from cloudgpu.aws.resources.storage.lifecycle import FileSystemHandler, Found
from cloudgpu.aws.session.errors import is_gone, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudGpuError


class MountTargetHandler(FileSystemHandler):
    """EFS mount target, which is free and has no tags.

    At most one exists per zone, so the file system ID is its token.
    """

    type: ClassVar[str] = "aws:efs/mountTarget:MountTarget"
    noun = "EFS mount target"
    accepts = frozenset({"fileSystemId", "subnetId", "securityGroups", "ipAddress"})
    requires = frozenset({"fileSystemId", "subnetId"})
    replaced_by = frozenset({"fileSystemId", "subnetId", "ipAddress"})
    ready = frozenset({"available"})
    failed = frozenset({"error"})
    over = frozenset({"deleted"})

    def check(self, inputs: Properties) -> Properties:
        """Check the properties. Tags are rejected, because a mount target cannot be tagged.

        Raises:
            UnsupportedError: A property is not implemented; the message names it.
            BadRequestError: A property is missing.
        """
        self._refuse({"tags"} & {key for key, value in inputs.items() if value})
        return super().check(inputs)

    def _make(self, ctx: HandlerContext, inputs: Properties) -> str:
        request = {"FileSystemId": inputs["fileSystemId"], "SubnetId": inputs["subnetId"]}
        if inputs.get("securityGroups") is not None:
            request["SecurityGroups"] = list(inputs["securityGroups"])
        if inputs.get("ipAddress"):
            request["IpAddress"] = inputs["ipAddress"]
        return str(ctx.clients.client("efs").create_mount_target(**request)["MountTargetId"])

    def _made(self, ctx: HandlerContext, inputs: Properties) -> str:
        try:
            with typed(f"looking for mount targets of {inputs['fileSystemId']}"):
                answer = ctx.clients.client("efs").describe_mount_targets(FileSystemId=inputs["fileSystemId"])
        except CloudGpuError as err:
            if is_gone(err):
                return ""
            raise
        here = [target for target in answer["MountTargets"] if target["SubnetId"] == inputs["subnetId"]]
        return next((target["MountTargetId"] for target in here if self._state(target) not in self.over), "")

    def _look(self, clients: Clients, physical_id: str) -> Found | None:
        efs = clients.client("efs")
        found: Found | None = next(iter(efs.describe_mount_targets(MountTargetId=physical_id)["MountTargets"]), None)
        if found is not None:
            groups = efs.describe_mount_target_security_groups(MountTargetId=physical_id)["SecurityGroups"]
            found = {**found, "SecurityGroups": groups}
        return found

    def _state(self, found: Found) -> str:
        return str(found["LifeCycleState"])

    def _change(self, ctx: HandlerContext, found: Found, old: Properties, new: Properties) -> None:  # noqa: ARG002
        if new.get("securityGroups") is not None:
            groups = list(new["securityGroups"])
            efs = ctx.clients.client("efs")
            efs.modify_mount_target_security_groups(MountTargetId=found["MountTargetId"], SecurityGroups=groups)

    def _unmake(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        ctx.clients.client("efs").delete_mount_target(MountTargetId=physical_id)

    def _outputs(self, clients: Clients, found: Found, inputs: Properties) -> Mapping[str, Any]:  # noqa: ARG002
        system, owner = found["FileSystemId"], found["OwnerId"]
        dns = f"{system}.efs.{clients.region}.amazonaws.com"
        zone = found.get("AvailabilityZoneName") or ""
        return {
            "fileSystemId": system,
            "subnetId": found["SubnetId"],
            "securityGroups": sorted(found["SecurityGroups"]),
            "ipAddress": found["IpAddress"],
            "dnsName": dns,
            "mountTargetDnsName": f"{zone}.{dns}",
            "fileSystemArn": f"arn:aws:elasticfilesystem:{clients.region}:{owner}:file-system/{system}",
            "networkInterfaceId": found.get("NetworkInterfaceId") or "",
            "availabilityZoneName": zone,
            "availabilityZoneId": found.get("AvailabilityZoneId") or "",
            "ownerId": owner,
        }
