"""The components of a cluster: its network, its nodes and its data storage."""

import base64
from typing import Any

import pulumi
import pulumi_alicloud as alicloud

from alibaba_cluster.settings import AlibabaArgs
from gpu_cluster.user_data import user_data

VPC_CIDR = "10.85.0.0/16"
_SWITCH_CIDR = "10.85.0.0/17"
_UBUNTU = "^ubuntu_22_04_x64_20G_alibase_"
_PUBLIC_MBIT_S = 100
_NAS_MANAGED_KEY = 1


class AlibabaNetwork(pulumi.ComponentResource):
    """A VPC with one vSwitch, and a security group that allows SSH from the caller and all traffic among the nodes."""

    vpc_id: pulumi.Output[str]
    switch_id: pulumi.Output[str]
    security_group_id: pulumi.Output[str]

    def __init__(self, name: str, args: AlibabaArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:alibaba:Network", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        vpc = alicloud.vpc.Network(name, vpc_name=args.physical_name, cidr_block=VPC_CIDR, tags=args.tags, opts=child)
        switch = alicloud.vpc.Switch(
            name,
            vswitch_name=args.physical_name,
            vpc_id=vpc.id,
            cidr_block=_SWITCH_CIDR,
            zone_id=args.zone,
            tags=args.tags,
            opts=child,
        )
        group = alicloud.ecs.SecurityGroup(
            name,
            security_group_name=args.physical_name,
            description="cloudgpu: SSH from the caller, everything among the nodes",
            vpc_id=vpc.id,
            inner_access_policy="Accept",
            tags=args.tags,
            opts=child,
        )
        for index, cidr in enumerate(args.ssh_cidrs):
            alicloud.ecs.SecurityGroupRule(
                f"{name}-ssh-{index}",
                security_group_id=group.id,
                type="ingress",
                ip_protocol="tcp",
                port_range="22/22",
                cidr_ip=cidr,
                policy="accept",
                nic_type="intranet",  # the only type in a VPC
                priority=1,
                description="SSH from the caller",
                opts=child,
            )
        self.vpc_id, self.switch_id, self.security_group_id = vpc.id, switch.id, group.id
        self.register_outputs({"vpcId": vpc.id, "vswitchId": switch.id, "securityGroupId": group.id})


class Nodes(pulumi.ComponentResource):
    """Pay-as-you-go instances that Alibaba Cloud releases at the expiry regardless of their state.

    An instance that powers itself off is only stopped, and it may be billed like a running one: Alibaba Cloud's
    economical mode (`StopCharging`) is an option of the API call StopInstance, and types with local disks, such as
    gn5, do not support it. Therefore, only the release time limits the costs; the timer on the node ends the work.
    """

    instances: list[alicloud.ecs.Instance]

    def __init__(
        self, name: str, args: AlibabaArgs, network: AlibabaNetwork, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("cloudgpu:alibaba:Nodes", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        key = alicloud.ecs.EcsKeyPair(
            name, key_pair_name=args.physical_name, public_key=args.public_key, tags=args.tags, opts=child
        )
        hpc = alicloud.ecs.HpcCluster(name, name=args.physical_name, opts=child) if args.rdma else None
        image = args.image or _newest_ubuntu(self)
        self.instances = [
            alicloud.ecs.Instance(
                f"{name}-{index}",
                instance_name=f"{args.physical_name}-{index}",
                host_name=f"{args.cluster}-{index}",
                instance_type=args.instance_type,
                image_id=image,
                key_name=key.key_pair_name,
                security_groups=[network.security_group_id],
                vswitch_id=network.switch_id,
                hpc_cluster_id=hpc.id if hpc else None,
                internet_charge_type="PayByTraffic",
                internet_max_bandwidth_out=_PUBLIC_MBIT_S,
                instance_charge_type="PostPaid",
                spot_strategy="SpotAsPriceGo" if args.market == "spot" else "NoSpot",
                auto_release_time=args.expires_at.strftime("%Y-%m-%dT%H:%M:00Z"),
                deletion_protection=False,
                system_disk_category="cloud_essd",
                system_disk_size=args.disk_gib,
                system_disk_encrypted=True,
                http_endpoint="enabled",
                http_tokens="required",
                http_put_response_hop_limit=2,  # one more than the default because containers use a bridge
                user_data=base64.b64encode(user_data(args.expires_at, args.bootstrap).encode()).decode(),
                tags=args.tags,
                volume_tags=args.tags,
                # A newer image must not replace the nodes of a running cluster.
                opts=pulumi.ResourceOptions(parent=self, ignore_changes=["imageId"]),
            )
            for index in range(args.nodes)
        ]
        self.register_outputs({"instanceIds": [instance.id for instance in self.instances]})


def _newest_ubuntu(parent: pulumi.Resource) -> pulumi.Output[str]:
    images = alicloud.ecs.get_images_output(
        name_regex=_UBUNTU, owners="system", most_recent=True, opts=pulumi.InvokeOptions(parent=parent)
    )
    image: pulumi.Output[str] = images.images.apply(_first)
    return image


def _first(images: list[alicloud.ecs.outputs.GetImagesImageResult]) -> str:
    if not images:
        message = "this region has no Ubuntu 22.04 image: set cloudgpu:image"
        raise pulumi.RunError(message)
    return str(images[0].id)


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


class AlibabaCluster(pulumi.ComponentResource):
    """A GPU cluster: its network, its nodes and its data storage."""

    def __init__(self, name: str, args: AlibabaArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:alibaba:Cluster", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self._network = AlibabaNetwork(name, args, child)
        self._nodes = Nodes(name, args, self._network, child)
        self._data = DataStorage(name, args, self._network, child)
        self.register_outputs({})

    def exports(self) -> dict[str, Any]:
        """Return the stack's outputs: the values for a hosts inventory and the location of the data."""
        return {
            "instanceIds": [instance.id for instance in self._nodes.instances],
            "addresses": [instance.public_ip for instance in self._nodes.instances],
            "privateAddresses": [instance.primary_ip_address for instance in self._nodes.instances],
            "vpcId": self._network.vpc_id,
            "vswitchId": self._network.switch_id,
            "securityGroupId": self._network.security_group_id,
            **self._data.shown,
        }
