"""Data storage: a file system that all nodes mount, and a bucket."""

from typing import Any

import pulumi
import pulumi_alicloud as alicloud

from alibaba_cluster.network import VPC_CIDR, AlibabaNetwork
from alibaba_cluster.settings import AlibabaArgs

_NAS_MANAGED_KEY = 1


class DataStorage(pulumi.ComponentResource):
    """The storage that the settings specify. Deleting the stack retains the storage unless it is disposable."""

    def __init__(
        self, name: str, args: AlibabaArgs, network: AlibabaNetwork, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("cloudgpu:alibaba:Data", name, None, opts)
        self._child = pulumi.ResourceOptions(parent=self)
        self._kept = pulumi.ResourceOptions(parent=self, retain_on_delete=not args.disposable)
        self.shown: dict[str, Any] = {"nasAddress": "", "nasId": "", "bucket": ""}
        if args.nas:
            self._file_system(name, args, network)
        if args.oss:
            self._bucket(name, args)
        self.register_outputs(self.shown)

    def _file_system(self, name: str, args: AlibabaArgs, network: AlibabaNetwork) -> None:
        system = alicloud.nas.FileSystem(
            name,
            protocol_type="NFS",
            storage_type="Performance",
            file_system_type="standard",
            encrypt_type=_NAS_MANAGED_KEY,
            zone_id=args.zone,
            description=args.physical_name,
            tags=args.tags,
            opts=self._kept,
        )
        group = alicloud.nas.AccessGroup(
            name, access_group_name=args.physical_name, access_group_type="Vpc", opts=self._child
        )
        alicloud.nas.AccessRule(
            name,
            access_group_name=group.access_group_name,
            source_cidr_ip=VPC_CIDR,
            rw_access_type="RDWR",
            user_access_type="no_squash",  # containers run as root
            priority=1,
            opts=self._child,
        )
        target = alicloud.nas.MountTarget(
            name,
            file_system_id=system.id,
            access_group_name=group.access_group_name,
            network_type="Vpc",
            vpc_id=network.vpc_id,
            vswitch_id=network.switch_id,
            opts=self._child,
        )
        self.shown |= {"nasId": system.id, "nasAddress": target.mount_target_domain}

    def _bucket(self, name: str, args: AlibabaArgs) -> None:
        bucket = alicloud.oss.Bucket(
            name,
            bucket=args.physical_name,
            redundancy_type="LRS",
            force_destroy=args.disposable,
            tags=args.tags,
            opts=self._kept,
        )
        # Retain these settings if the bucket is retained. Without them, the bucket would be unprotected.
        alicloud.oss.BucketAcl(name, bucket=bucket.id, acl="private", opts=self._kept)
        alicloud.oss.BucketPublicAccessBlock(name, bucket=bucket.id, block_public_access=True, opts=self._kept)
        alicloud.oss.BucketServerSideEncryption(name, bucket=bucket.id, sse_algorithm="AES256", opts=self._kept)
        self.shown["bucket"] = bucket.id
