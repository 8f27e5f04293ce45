"""Handler for `aws:efs/mountTarget:MountTarget`: the endpoint of a file system in one subnet."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.resources.base import HandlerContext, Properties
from cloudgpu.aws.resources.storage.lifecycle import FileSystemHandler, Found
from cloudgpu.aws.session.errors import convert_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudGpuError


class MountTargetHandler(FileSystemHandler):
    """Handler for EFS mount targets, which are free and have no tags.

    A file system has at most one mount target per zone, so the file system ID and the subnet identify the target.
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
        """Check the properties. Tags are rejected because a mount target cannot be tagged."""
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
            with convert_errors(f"listing the mount targets of {inputs['fileSystemId']}"):
                response = ctx.clients.client("efs").describe_mount_targets(FileSystemId=inputs["fileSystemId"])
        except CloudGpuError as err:
            if is_gone(err):
                return ""
            raise
        in_subnet = [target for target in response["MountTargets"] if target["SubnetId"] == inputs["subnetId"]]
        return next((target["MountTargetId"] for target in in_subnet if self._is_adoptable(target)), "")

    def _look(self, clients: Clients, physical_id: str) -> Found | None:
        efs = clients.client("efs")
        target: Found | None = next(iter(efs.describe_mount_targets(MountTargetId=physical_id)["MountTargets"]), None)
        if target is not None:
            groups = efs.describe_mount_target_security_groups(MountTargetId=physical_id)["SecurityGroups"]
            target = {**target, "SecurityGroups": groups}
        return target

    def _state(self, description: Found) -> str:
        return str(description["LifeCycleState"])

    def _change(self, ctx: HandlerContext, description: Found, old: Properties, new: Properties) -> None:  # noqa: ARG002
        if new.get("securityGroups") is not None:
            groups = list(new["securityGroups"])
            efs = ctx.clients.client("efs")
            efs.modify_mount_target_security_groups(MountTargetId=description["MountTargetId"], SecurityGroups=groups)

    def _unmake(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        ctx.clients.client("efs").delete_mount_target(MountTargetId=physical_id)

    def _outputs(self, clients: Clients, description: Found, inputs: Properties) -> Mapping[str, Any]:  # noqa: ARG002
        system, owner = description["FileSystemId"], description["OwnerId"]
        dns = f"{system}.efs.{clients.region}.amazonaws.com"
        zone = description.get("AvailabilityZoneName") or ""
        return {
            "fileSystemId": system,
            "subnetId": description["SubnetId"],
            "securityGroups": sorted(description["SecurityGroups"]),
            "ipAddress": description["IpAddress"],
            "dnsName": dns,
            "mountTargetDnsName": f"{zone}.{dns}",
            "fileSystemArn": f"arn:aws:elasticfilesystem:{clients.region}:{owner}:file-system/{system}",
            "networkInterfaceId": description.get("NetworkInterfaceId") or "",
            "availabilityZoneName": zone,
            "availabilityZoneId": description.get("AvailabilityZoneId") or "",
            "ownerId": owner,
        }
