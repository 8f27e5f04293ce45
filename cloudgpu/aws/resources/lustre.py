"""Handlers for FSx for Lustre: file systems, and their associations with S3 (`DataRepositoryAssociation`)."""

from collections.abc import Iterable, Iterator, Mapping
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
from cloudgpu.aws.resources.storage_handler import FileSystemHandler, Found
from cloudgpu.aws.session.errors import UNREACHABLE, convert_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudError, CloudGpuError

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
_POLICIES: Mapping[str, str] = {"autoImportPolicy": "AutoImportPolicy", "autoExportPolicy": "AutoExportPolicy"}


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


class DataRepositoryAssociationHandler(FileSystemHandler):
    """Handler for data repository associations, which link a Lustre directory to an S3 prefix.

    Deleting an association never deletes S3 objects. It deletes the files in the Lustre directory only if
    `deleteDataInFilesystem` is set.
    """

    type: ClassVar[str] = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
    noun = "data repository association"
    accepts = frozenset(
        {
            "fileSystemId",
            "fileSystemPath",
            "dataRepositoryPath",
            "batchImportMetaDataOnCreate",
            "deleteDataInFilesystem",
            "importedFileChunkSize",
            "s3",
        }
    )
    requires = frozenset({"fileSystemId", "fileSystemPath", "dataRepositoryPath"})
    defaults: ClassVar[Properties] = {"batchImportMetaDataOnCreate": False, "deleteDataInFilesystem": False}
    replaced_by = frozenset({"fileSystemId", "fileSystemPath", "dataRepositoryPath", "batchImportMetaDataOnCreate"})
    nested: ClassVar[Mapping[str, frozenset[str]]] = {
        "s3": frozenset(_POLICIES),
        "s3.autoImportPolicy": frozenset({"events"}),
        "s3.autoExportPolicy": frozenset({"events"}),
    }
    state_key = "Lifecycle"
    ready = frozenset({"AVAILABLE"})
    failed = frozenset({"FAILED", "MISCONFIGURED"})
    appear_s = 1200
    release_s = 1200

    def _make(self, ctx: HandlerContext, inputs: Properties) -> str:
        request: dict[str, Any] = {
            "ClientRequestToken": ctx.token,
            "FileSystemId": inputs["fileSystemId"],
            "FileSystemPath": inputs["fileSystemPath"],
            "DataRepositoryPath": inputs["dataRepositoryPath"],
            "BatchImportMetaDataOnCreate": bool(inputs["batchImportMetaDataOnCreate"]),
            "Tags": to_tag_list(all_tags(ctx, inputs)),
            **_changeable(inputs),
        }
        response = ctx.clients.client("fsx").create_data_repository_association(**request)
        return str(response["Association"]["AssociationId"])

    def _made(self, ctx: HandlerContext, inputs: Properties) -> str:
        filters = [{"Name": "file-system-id", "Values": [inputs["fileSystemId"]]}]
        try:
            with convert_errors("listing data repository associations"):
                associations = list(list_associations(ctx.clients.client("fsx"), Filters=filters))
        except CloudGpuError as err:
            if is_gone(err):
                return ""
            raise
        ours = [
            association
            for association in associations
            if self._is_adoptable(association) and is_ours(ctx, tags_to_dict(association.get("Tags")))
        ]
        return next((str(association["AssociationId"]) for association in ours), "")

    def _look(self, clients: Clients, physical_id: str) -> Found | None:
        response = clients.client("fsx").describe_data_repository_associations(AssociationIds=[physical_id])
        return next(iter(response["Associations"]), None)

    def _change(self, ctx: HandlerContext, description: Found, old: Properties, new: Properties) -> None:
        fsx = ctx.clients.client("fsx")
        if _changeable(old) != _changeable(new):
            physical_id = description["AssociationId"]
            fsx.update_data_repository_association(
                AssociationId=physical_id, ClientRequestToken=ctx.token, **_changeable(new)
            )
        update_fsx_tags(fsx, description["ResourceARN"], changed_tags(ctx, old), changed_tags(ctx, new))

    def _unmake(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        wipe = bool(outputs.get("deleteDataInFilesystem"))
        fsx = ctx.clients.client("fsx")
        fsx.delete_data_repository_association(AssociationId=physical_id, DeleteDataInFileSystem=wipe)

    def _outputs(self, clients: Clients, description: Found, inputs: Properties) -> Mapping[str, Any]:  # noqa: ARG002
        tags = tags_to_dict(description.get("Tags"))
        return {
            "arn": description["ResourceARN"],
            "associationId": description["AssociationId"],
            "fileSystemId": description["FileSystemId"],
            "fileSystemPath": description["FileSystemPath"],
            "dataRepositoryPath": description["DataRepositoryPath"],
            "batchImportMetaDataOnCreate": bool(description.get("BatchImportMetaDataOnCreate")),
            "deleteDataInFilesystem": bool(inputs.get("deleteDataInFilesystem")),
            "importedFileChunkSize": description.get("ImportedFileChunkSize") or 0,
            "s3": _shown(description.get("S3") or {}),
            **tag_outputs(inputs or {"tags": tags}, tags),
        }


def _changeable(inputs: Properties) -> dict[str, Any]:
    """Return the properties that can be set at creation and changed later."""
    request: dict[str, Any] = {}
    if inputs.get("importedFileChunkSize"):
        request["ImportedFileChunkSize"] = int(inputs["importedFileChunkSize"])
    if inputs.get("s3"):
        policies = {key: inputs["s3"].get(key) for key in _POLICIES}
        request["S3"] = {
            _POLICIES[key]: {"Events": list(policy["events"])} for key, policy in policies.items() if policy
        }
    return request


def _shown(s3: Mapping[str, Any]) -> dict[str, Any]:
    present = {key: s3[member] for key, member in _POLICIES.items() if s3.get(member)}
    return {key: {"events": list(policy.get("Events") or ())} for key, policy in present.items()}


def list_associations(fsx: Any, **request: Any) -> Iterator[Found]:  # noqa: ANN401 - a boto3 client and its arguments
    """Yield the data repository associations that a request selects, from every page of the response.

    Botocore has no paginator for this call, and a paginator would reject a repeated token.
    """
    seen_tokens: set[str] = set()
    while True:
        page = fsx.describe_data_repository_associations(**request)
        yield from page["Associations"]
        token = str(page.get("NextToken") or "")
        if not token:
            return
        if token in seen_tokens:
            raise CloudError(
                "FSx returned an endless list of data repository associations",
                code=UNREACHABLE,
                hint="run the command again",
            )
        seen_tokens.add(token)
        request["NextToken"] = token
