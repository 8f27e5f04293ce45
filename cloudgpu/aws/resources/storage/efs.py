"""Handler for `aws:efs/fileSystem:FileSystem`: a file system that grows with its content and is billed by size."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import tags_to_dict, to_tag_list
from cloudgpu.aws.resources.base import HandlerContext, Properties
from cloudgpu.aws.resources.described import all_tags, changed_tags, is_ours, tag_outputs
from cloudgpu.aws.resources.storage.lifecycle import FileSystemHandler, Found
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.session import Clients


class EfsHandler(FileSystemHandler):
    """Handler for EFS file systems. If the program sets no `creationToken`, the call's token is used."""

    type: ClassVar[str] = "aws:efs/fileSystem:FileSystem"
    noun = "EFS file system"
    accepts = frozenset({"creationToken", "encrypted", "kmsKeyId", "performanceMode", "throughputMode"})
    defaults: ClassVar[Properties] = {"throughputMode": "bursting"}
    replaced_by = frozenset({"creationToken", "encrypted", "kmsKeyId", "performanceMode"})
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

    def _state(self, description: Found) -> str:
        return str(description["LifeCycleState"])

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
