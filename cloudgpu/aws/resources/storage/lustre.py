"""Handler for `aws:fsx/lustreFileSystem:LustreFileSystem`."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import tags_to_dict, to_tag_list
from cloudgpu.aws.resources.handler import (
    Diff,
    HandlerContext,
    Properties,
    all_tags,
    changed_tags,
    is_ours,
    tag_outputs,
)
from cloudgpu.aws.resources.storage.lifecycle import FileSystemHandler, Found
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.session import Clients

_CONFIGURATION: Mapping[str, str] = {
    "deploymentType": "DeploymentType",
    "perUnitStorageThroughput": "PerUnitStorageThroughput",
    "dataCompressionType": "DataCompressionType",
    "automaticBackupRetentionDays": "AutomaticBackupRetentionDays",
    "weeklyMaintenanceStartTime": "WeeklyMaintenanceStartTime",
}
"""Pulumi property -> member of `LustreConfiguration`."""
_CHANGEABLE = ("dataCompressionType", "automaticBackupRetentionDays", "weeklyMaintenanceStartTime")
_INTEGERS = ("perUnitStorageThroughput", "automaticBackupRetentionDays")


class LustreHandler(FileSystemHandler):
    """Handler for Lustre file systems. The client token makes creation idempotent."""

    type: ClassVar[str] = "aws:fsx/lustreFileSystem:LustreFileSystem"
    noun = "Lustre file system"
    accepts = frozenset(_CONFIGURATION) | {
        "subnetIds",
        "securityGroupIds",
        "storageCapacity",
        "storageType",
        "kmsKeyId",
        "fileSystemTypeVersion",
        "skipFinalBackup",
    }
    requires = frozenset({"subnetIds", "storageCapacity", "deploymentType"})
    defaults: ClassVar[Properties] = {"storageType": "SSD", "dataCompressionType": "NONE", "skipFinalBackup": True}
    replaced_by = frozenset(
        {
            "subnetIds",
            "securityGroupIds",
            "storageType",
            "kmsKeyId",
            "fileSystemTypeVersion",
            "deploymentType",
            "perUnitStorageThroughput",
        }
    )
    state_key = "Lifecycle"
    ready = frozenset({"AVAILABLE"})
    failed = frozenset({"FAILED", "MISCONFIGURED", "MISCONFIGURED_UNAVAILABLE"})
    appear_s = 1800
    release_s = 1800

    def diff(self, old: Properties, new: Properties) -> Diff:
        """Compare the properties. A file system cannot shrink, so a smaller capacity forces a replacement."""
        diff = super().diff(old, new)
        if "storageCapacity" in diff.changed and not _grows(old, new):
            return Diff(diff.changed, tuple(sorted({*diff.replace, "storageCapacity"})))
        return diff

    def _make(self, ctx: HandlerContext, inputs: Properties) -> str:
        request: dict[str, Any] = {
            "ClientRequestToken": ctx.token,
            "FileSystemType": "LUSTRE",
            "StorageCapacity": int(inputs["storageCapacity"]),
            "StorageType": inputs["storageType"],
            # The provider accepts a single subnet, as a string.
            "SubnetIds": [inputs["subnetIds"]],
            "Tags": to_tag_list(all_tags(ctx, inputs)),
            "LustreConfiguration": _configuration(inputs, _CONFIGURATION),
        }
        for key, member in (("kmsKeyId", "KmsKeyId"), ("fileSystemTypeVersion", "FileSystemTypeVersion")):
            if inputs.get(key):
                request[member] = inputs[key]
        if inputs.get("securityGroupIds"):
            request["SecurityGroupIds"] = list(inputs["securityGroupIds"])
        return str(ctx.clients.client("fsx").create_file_system(**request)["FileSystem"]["FileSystemId"])

    def _made(self, ctx: HandlerContext, inputs: Properties) -> str:  # noqa: ARG002
        with convert_errors("looking for a Lustre file system"):
            pages = ctx.clients.client("fsx").get_paginator("describe_file_systems").paginate()
            file_systems = [file_system for page in pages for file_system in page["FileSystems"]]
        return next(
            (
                file_system["FileSystemId"]
                for file_system in file_systems
                if self._is_adoptable(file_system) and is_ours(ctx, tags_to_dict(file_system.get("Tags")))
            ),
            "",
        )

    def _look(self, clients: Clients, physical_id: str) -> Found | None:
        response = clients.client("fsx").describe_file_systems(FileSystemIds=[physical_id])
        return next(iter(response["FileSystems"]), None)

    def _change(self, ctx: HandlerContext, description: Found, old: Properties, new: Properties) -> None:
        fsx, physical_id = ctx.clients.client("fsx"), description["FileSystemId"]
        request: dict[str, Any] = {}
        if int(description["StorageCapacity"]) != int(new["storageCapacity"]):
            request["StorageCapacity"] = int(new["storageCapacity"])
        changed = [key for key in _CHANGEABLE if old.get(key) != new.get(key)]
        if changed:
            request["LustreConfiguration"] = _configuration(new, changed)
        if request:
            fsx.update_file_system(FileSystemId=physical_id, ClientRequestToken=ctx.token, **request)
        update_fsx_tags(fsx, description["ResourceARN"], changed_tags(ctx, old), changed_tags(ctx, new))

    def _unmake(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        request: dict[str, Any] = {}
        if str(outputs.get("deploymentType", "")).startswith("PERSISTENT"):
            request["LustreConfiguration"] = {"SkipFinalBackup": bool(outputs.get("skipFinalBackup", True))}
        ctx.clients.client("fsx").delete_file_system(FileSystemId=physical_id, **request)

    def _outputs(self, clients: Clients, description: Found, inputs: Properties) -> Mapping[str, Any]:  # noqa: ARG002
        tags = tags_to_dict(description.get("Tags"))
        lustre = description.get("LustreConfiguration") or {}
        return {
            "arn": description["ResourceARN"],
            "dnsName": description.get("DNSName") or "",
            "mountName": lustre.get("MountName") or "",
            "networkInterfaceIds": list(description.get("NetworkInterfaceIds") or ()),
            "ownerId": description.get("OwnerId") or "",
            "vpcId": description.get("VpcId") or "",
            "subnetIds": next(iter(description["SubnetIds"]), ""),
            # AWS does not report the security groups of the network interfaces.
            "securityGroupIds": list(inputs.get("securityGroupIds") or ()),
            "storageCapacity": description["StorageCapacity"],
            "storageType": description.get("StorageType") or "",
            "kmsKeyId": description.get("KmsKeyId") or "",
            "fileSystemTypeVersion": description.get("FileSystemTypeVersion") or "",
            "skipFinalBackup": bool(inputs.get("skipFinalBackup", True)),
            **{key: lustre.get(member, inputs.get(key)) for key, member in _CONFIGURATION.items()},
            **tag_outputs(inputs or {"tags": tags}, tags),
        }


def update_fsx_tags(fsx: Any, arn: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:  # noqa: ANN401
    """Change the tags of an FSx resource."""
    fsx.tag_resource(ResourceARN=arn, Tags=to_tag_list(after))
    removed = sorted(before.keys() - after.keys())
    if removed:
        fsx.untag_resource(ResourceARN=arn, TagKeys=removed)


def _configuration(inputs: Properties, keys: Iterable[str]) -> dict[str, Any]:
    """Return the `LustreConfiguration`. FSx rejects floats, so numbers from Pulumi are converted to integers."""
    present = {key: inputs[key] for key in keys if inputs.get(key) is not None}
    return {_CONFIGURATION[key]: int(value) if key in _INTEGERS else value for key, value in present.items()}


def _grows(old: Properties, new: Properties) -> bool:
    """Return True if the storage capacity grows. An unknown capacity counts as growth."""
    before, after = old.get("storageCapacity"), new.get("storageCapacity")
    if isinstance(before, (int, float)) and isinstance(after, (int, float)):
        return after > before
    return True  # AWS rejects the update if the capacity is smaller
