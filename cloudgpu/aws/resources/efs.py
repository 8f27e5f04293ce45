"""Handlers for EFS file systems, which grow with their content, and for their mount targets in each subnet."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import tags_to_dict, to_tag_list
from cloudgpu.aws.resources.handler import (
    HandlerContext,
    Properties,
    all_tags,
    changed_tags,
    is_ours,
    response_unless_gone,
    tag_outputs,
)
from cloudgpu.aws.resources.storage_handler import FileSystemHandler, Found
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.session import Clients


class MountTargetHandler(FileSystemHandler):
    """Handler for EFS mount targets, which are free and have no tags.

    A file system has at most one mount target per zone, so the file system ID and the subnet identify the target.
    """

    type: ClassVar[str] = "aws:efs/mountTarget:MountTarget"
    noun = "EFS mount target"
    accepts = frozenset({"fileSystemId", "subnetId", "securityGroups", "ipAddress"})
    requires = frozenset({"fileSystemId", "subnetId"})
    replaced_by = frozenset({"fileSystemId", "subnetId", "ipAddress"})
    state_key = "LifeCycleState"
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
        system, describe = inputs["fileSystemId"], ctx.clients.client("efs").describe_mount_targets
        response = response_unless_gone(f"listing the mount targets of {system}", describe, FileSystemId=system)
        targets = response["MountTargets"] if response is not None else ()
        in_subnet = [target for target in targets if target["SubnetId"] == inputs["subnetId"]]
        return next((target["MountTargetId"] for target in in_subnet if self._is_adoptable(target)), "")

    def _look(self, clients: Clients, physical_id: str) -> Found | None:
        efs = clients.client("efs")
        target: Found | None = next(iter(efs.describe_mount_targets(MountTargetId=physical_id)["MountTargets"]), None)
        if target is not None:
            groups = efs.describe_mount_target_security_groups(MountTargetId=physical_id)["SecurityGroups"]
            target = {**target, "SecurityGroups": groups}
        return target

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


class EfsHandler(FileSystemHandler):
    """Handler for EFS file systems. If the program sets no `creationToken`, the call's token is used."""

    type: ClassVar[str] = "aws:efs/fileSystem:FileSystem"
    noun = "EFS file system"
    accepts = frozenset({"creationToken", "encrypted", "kmsKeyId", "performanceMode", "throughputMode"})
    defaults: ClassVar[Properties] = {"throughputMode": "bursting"}
    replaced_by = frozenset({"creationToken", "encrypted", "kmsKeyId", "performanceMode"})
    state_key = "LifeCycleState"
    ready = frozenset({"available"})
    failed = frozenset({"error"})
    over = frozenset({"deleted"})

    def _make(self, ctx: HandlerContext, inputs: Properties) -> str:
        request: dict[str, Any] = {
            "CreationToken": _token(ctx, inputs),
            "ThroughputMode": inputs["throughputMode"],
            "Tags": to_tag_list(all_tags(ctx, inputs)),
        }
        if inputs.get("encrypted") is not None:
            request["Encrypted"] = bool(inputs["encrypted"])
        if inputs.get("kmsKeyId"):
            request["KmsKeyId"] = inputs["kmsKeyId"]
        if inputs.get("performanceMode"):
            request["PerformanceMode"] = inputs["performanceMode"]
        return str(ctx.clients.client("efs").create_file_system(**request)["FileSystemId"])

    def _made(self, ctx: HandlerContext, inputs: Properties) -> str:
        with convert_errors("looking for an EFS file system"):
            response = ctx.clients.client("efs").describe_file_systems(CreationToken=_token(ctx, inputs))
        ours = [
            file_system
            for file_system in response["FileSystems"]
            if is_ours(ctx, tags_to_dict(file_system.get("Tags")))
        ]
        return next((file_system["FileSystemId"] for file_system in ours if self._is_adoptable(file_system)), "")

    def _look(self, clients: Clients, physical_id: str) -> Found | None:
        response = clients.client("efs").describe_file_systems(FileSystemId=physical_id)
        return next(iter(response["FileSystems"]), None)

    def _change(self, ctx: HandlerContext, description: Found, old: Properties, new: Properties) -> None:
        efs, physical_id = ctx.clients.client("efs"), description["FileSystemId"]
        if description.get("ThroughputMode") != new["throughputMode"]:
            efs.update_file_system(FileSystemId=physical_id, ThroughputMode=new["throughputMode"])
        before, after = changed_tags(ctx, old), changed_tags(ctx, new)
        efs.tag_resource(ResourceId=physical_id, Tags=to_tag_list(after))
        removed = sorted(before.keys() - after.keys())
        if removed:
            efs.untag_resource(ResourceId=physical_id, TagKeys=removed)

    def _unmake(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        ctx.clients.client("efs").delete_file_system(FileSystemId=physical_id)

    def _outputs(self, clients: Clients, description: Found, inputs: Properties) -> Mapping[str, Any]:
        tags = tags_to_dict(description.get("Tags"))
        size = description["SizeInBytes"]
        return {
            "arn": description["FileSystemArn"],
            "availabilityZoneId": description.get("AvailabilityZoneId") or "",
            "availabilityZoneName": description.get("AvailabilityZoneName") or "",
            "creationToken": description["CreationToken"],
            "dnsName": f"{description['FileSystemId']}.efs.{clients.region}.amazonaws.com",
            "encrypted": bool(description.get("Encrypted")),
            "kmsKeyId": description.get("KmsKeyId") or "",
            "name": description.get("Name") or "",
            "numberOfMountTargets": description["NumberOfMountTargets"],
            "ownerId": description["OwnerId"],
            "performanceMode": description["PerformanceMode"],
            "throughputMode": description["ThroughputMode"],
            "sizeInBytes": [
                {
                    "value": size["Value"],
                    "valueInIa": size.get("ValueInIA") or 0,
                    "valueInStandard": size.get("ValueInStandard") or 0,
                }
            ],
            **tag_outputs(inputs or {"tags": tags}, tags),
        }


def _token(ctx: HandlerContext, inputs: Properties) -> str:
    return str(inputs.get("creationToken") or ctx.token)
