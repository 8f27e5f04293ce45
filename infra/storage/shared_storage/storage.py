"""The top-level component, which creates the requested kind of storage, and a component for each kind."""

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from shared_storage.settings import Kind, StorageArgs, storage_tags

Ports = tuple[tuple[int, int], ...]

NFS: Ports = ((2049, 2049),)
LUSTRE: Ports = ((988, 988), (1018, 1023))
_MIB_S_PER_TIB = 125
_IMPORTED = ["NEW", "CHANGED", "DELETED"]
_EXPORTED = ["NEW", "CHANGED"]
"""Events that are exported to S3. Deletions are not exported, so that a mistaken `rm` does not delete the dataset."""

Exports = dict[str, Any]


@dataclass(frozen=True)
class StorageNetwork:
    """Network of the storage: a VPC, and the ID of one subnet for each zone."""

    vpc_id: str
    subnets: dict[str, str]


def find_storage_network(args: StorageArgs, parent: pulumi.Resource) -> StorageNetwork:
    """Return the VPC and one subnet per zone.

    Look them up synchronously, because each subnet may need a mount target.
    """
    options = pulumi.InvokeOptions(parent=parent)
    vpc_id = args.vpc_id
    if not args.subnet_ids:
        vpc_id = vpc_id or aws.ec2.get_vpc(default=True, opts=options).id
        filters = [{"name": "vpc-id", "values": [vpc_id]}]
        ids = aws.ec2.get_subnets(filters=filters, opts=options).ids
    else:
        ids = list(args.subnet_ids)
    subnets = [aws.ec2.get_subnet(id=subnet_id, opts=options) for subnet_id in sorted(ids)]
    vpcs = {subnet.vpc_id for subnet in subnets}
    if len(vpcs) != 1 or (vpc_id and vpcs != {vpc_id}):
        vpc_names = ", ".join(sorted(vpcs)) or "no VPC"
        message = f"the subnets belong to {vpc_names}: set cloudgpu:subnetIds to subnets of one VPC"
        raise pulumi.RunError(message)
    # A file system has at most one mount target per zone. Choose each zone's lowest subnet ID, which does not change.
    return StorageNetwork(vpcs.pop(), {subnet.availability_zone: subnet.id for subnet in reversed(subnets)})


class StorageSecurityGroup(pulumi.ComponentResource):
    """The security group of the file servers and their clients. Every instance in the group may mount the storage.

    Lustre servers also connect to their clients, so the rules apply in both directions.
    """

    security_group_id: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        args: StorageArgs,
        network: StorageNetwork,
        ports: Ports,
        tags: dict[str, str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("cloudgpu:storage:Access", name, None, opts)
        peers: list[dict[str, Any]] = [{"self": True}]
        if args.client_group_ids:
            peers.append({"security_groups": sorted(args.client_group_ids)})
        rules = [_rule(first, last, peer) for first, last in ports for peer in peers]
        group = aws.ec2.SecurityGroup(
            name,
            name=f"{args.physical_name}-mount",
            description=f"cloudgpu: members may mount storage {args.name}",
            vpc_id=network.vpc_id,
            ingress=rules,
            egress=rules,
            tags=tags,
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        self.security_group_id = group.id
        self.register_outputs({"securityGroupId": group.id})


def _rule(first: int, last: int, peer: dict[str, Any]) -> dict[str, Any]:
    return {"protocol": "tcp", "from_port": first, "to_port": last, "description": "members mount", **peer}


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


_KINDS: dict[Kind, type[Disk | Objects | ParallelFiles | SharedFiles]] = {
    "efs": SharedFiles,
    "lustre": ParallelFiles,
    "ebs": Disk,
    "s3": Objects,
}


class SharedStorage(pulumi.ComponentResource):
    """The storage that the settings specify, with its tags."""

    def __init__(self, name: str, args: StorageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:storage:Storage", name, None, opts)
        self._kind = args.kind
        self._made: StorageComponent = _KINDS[args.kind](
            name, args, storage_tags(args), pulumi.ResourceOptions(parent=self)
        )
        self.register_outputs({})

    def exports(self) -> dict[str, Any]:
        """Return the stack's outputs."""
        return {"kind": self._kind, **self._made.shown}
