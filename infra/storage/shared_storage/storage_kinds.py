"""One component for each of the four kinds of storage."""

from typing import Any

import pulumi
import pulumi_aws as aws

from shared_storage.mount_network import LUSTRE, NFS, StorageSecurityGroup, find_storage_network
from shared_storage.settings import StorageArgs

_MIB_S_PER_TIB = 125
_IMPORTED = ["NEW", "CHANGED", "DELETED"]
_EXPORTED = ["NEW", "CHANGED"]
"""Events that are exported to S3. Deletions are not exported, so that a mistaken `rm` does not delete the dataset."""

Exports = dict[str, Any]


class StorageComponent(pulumi.ComponentResource):
    """Base class of the storage components, whose outputs become outputs of the stack."""

    def __init__(self, kind: str, name: str, opts: pulumi.ResourceOptions | None) -> None:
        super().__init__(f"cloudgpu:storage:{kind}", name, None, opts)
        self.shown: Exports = {}

    def finish(self, shown: Exports) -> None:
        """Store and register the outputs."""
        self.shown = shown
        self.register_outputs(shown)

    def guarded(self, args: StorageArgs) -> pulumi.ResourceOptions:
        """Return the options of the resource that contains the data. `protect` makes Pulumi refuse to delete it."""
        return pulumi.ResourceOptions(parent=self, protect=args.protect)


class SharedFiles(StorageComponent):
    """An encrypted EFS file system with a mount target in every zone."""

    def __init__(
        self, name: str, args: StorageArgs, tags: dict[str, str], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("SharedFiles", name, opts)
        network = find_storage_network(args, self)
        access = StorageSecurityGroup(name, args, network, NFS, tags, pulumi.ResourceOptions(parent=self))
        system = aws.efs.FileSystem(
            name,
            encrypted=True,
            kms_key_id=args.kms_key_id or None,
            throughput_mode="bursting",
            tags=tags,
            opts=self.guarded(args),
        )
        targets = [
            aws.efs.MountTarget(
                f"{name}-{zone}",
                file_system_id=system.id,
                subnet_id=subnet_id,
                security_groups=[access.security_group_id],
                opts=pulumi.ResourceOptions(parent=self),
            )
            for zone, subnet_id in sorted(network.subnets.items())
        ]
        self.finish(
            {
                "id": system.id,
                "address": system.dns_name,
                "securityGroupId": access.security_group_id,
                "mountTargetIds": [target.id for target in targets],
            }
        )


class ParallelFiles(StorageComponent):
    """An FSx for Lustre file system in one zone. If an S3 prefix is linked, the root directory shows its objects."""

    def __init__(
        self, name: str, args: StorageArgs, tags: dict[str, str], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("ParallelFiles", name, opts)
        network = find_storage_network(args, self)
        if args.zone not in network.subnets:
            message = f"VPC {network.vpc_id} has no subnet in {args.zone}: set cloudgpu:subnetIds"
            raise pulumi.RunError(message)
        access = StorageSecurityGroup(name, args, network, LUSTRE, tags, pulumi.ResourceOptions(parent=self))
        persistent = args.deployment == "persistent_2"
        system = aws.fsx.LustreFileSystem(
            name,
            subnet_ids=network.subnets[args.zone],
            security_group_ids=[access.security_group_id],
            storage_capacity=args.size_gib,
            storage_type="SSD",
            deployment_type=args.deployment.upper(),
            per_unit_storage_throughput=_MIB_S_PER_TIB if persistent else None,
            file_system_type_version="2.15",
            data_compression_type="LZ4",
            # Backups are still billed after the file system is deleted, and have no cloudgpu tags.
            automatic_backup_retention_days=0 if persistent else None,
            skip_final_backup=True,
            kms_key_id=(args.kms_key_id or None) if persistent else None,
            tags=tags,
            opts=self.guarded(args),
        )
        if args.linked:
            aws.fsx.DataRepositoryAssociation(
                name,
                file_system_id=system.id,
                file_system_path="/",
                data_repository_path=args.linked,
                batch_import_meta_data_on_create=True,
                s3={"auto_import_policy": {"events": _IMPORTED}, "auto_export_policy": {"events": _EXPORTED}},
                tags=tags,
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.finish(
            {
                "id": system.id,
                "address": system.dns_name,
                "mountName": system.mount_name,
                "securityGroupId": access.security_group_id,
                "zone": args.zone,
            }
        )


class Disk(StorageComponent):
    """An encrypted gp3 EBS volume that is empty or restored from a snapshot."""

    def __init__(
        self, name: str, args: StorageArgs, tags: dict[str, str], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("Disk", name, opts)
        volume = aws.ebs.Volume(
            name,
            availability_zone=args.zone,
            size=args.size_gib or None,
            snapshot_id=args.snapshot_id or None,
            type="gp3",
            encrypted=True,
            kms_key_id=args.kms_key_id or None,
            tags=tags,
            opts=self.guarded(args),
        )
        self.finish({"id": volume.id, "zone": args.zone, "sizeGib": volume.size})


class Objects(StorageComponent):
    """An encrypted S3 bucket without versioning and without public access."""

    def __init__(
        self, name: str, args: StorageArgs, tags: dict[str, str], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("Objects", name, opts)
        bucket = aws.s3.Bucket(
            name, bucket=args.physical_name, force_destroy=not args.keep, tags=tags, opts=self.guarded(args)
        )
        # S3 deletes these two settings with the bucket. Deleting them first would leave the bucket unprotected.
        part = pulumi.ResourceOptions(parent=self, deleted_with=bucket)
        aws.s3.BucketPublicAccessBlock(
            name,
            bucket=bucket.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=part,
        )
        aws.s3.BucketServerSideEncryptionConfiguration(
            name, bucket=bucket.id, rules=[_encryption(args.kms_key_id)], opts=part
        )
        self.finish({"id": bucket.id, "url": bucket.id.apply(lambda bucket_id: f"s3://{bucket_id}")})


def _encryption(kms_key_id: str) -> dict[str, Any]:
    if not kms_key_id:
        return {"apply_server_side_encryption_by_default": {"sse_algorithm": "AES256"}}
    key = {"sse_algorithm": "aws:kms", "kms_master_key_id": kms_key_id}
    # With a bucket key, S3 does not call KMS for every object.
    return {"apply_server_side_encryption_by_default": key, "bucket_key_enabled": True}
