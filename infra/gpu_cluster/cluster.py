"""The whole cluster, put together."""

import hashlib
from typing import Any

import pulumi
import pulumi_aws as aws

from gpu_cluster.access import Access, AccessArgs
from gpu_cluster.belt import Belt, BeltArgs
from gpu_cluster.gang import Gang, GangArgs
from gpu_cluster.identity import Identity, IdentityArgs
from gpu_cluster.network import Network, NetworkArgs
from gpu_cluster.settings import ClusterArgs
from gpu_cluster.tags import cluster_tags
from gpu_cluster.template import Template, TemplateArgs
from gpu_cluster.user_data import UserDataTooLongError, user_data


class GpuCluster(pulumi.ComponentResource):
    """Network, access, identity, template and gang of one cluster."""

    def __init__(self, name: str, args: ClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:GpuCluster", name, None, opts)
        self._tags = cluster_tags(args)
        self._child = pulumi.ResourceOptions(parent=self)
        self.network = self._network(name, args)
        self.access = self._access(name, args)
        self.placement_group = self._placement_group(name, args)
        self.template = self._template(name, args, self._identity(name, args))
        self.belt = self._belt(name, args)
        self.gang = self._gang(name, args)
        if self.belt is not None:
            self.belt.buckle(self.gang.instance_ids)
        self.register_outputs({})

    def exports(self) -> dict[str, Any]:
        """The stack's outputs."""
        group = self.placement_group
        return {
            "instanceIds": self.gang.instance_ids,
            "fleetId": self.gang.fleet_id,
            "securityGroupId": self.access.security_group_id,
            "subnetId": self.network.subnet_id,
            "vpcId": self.network.vpc_id,
            "keyName": self.access.key_name,
            "placementGroup": "" if group is None else group.name,
            "launchTemplateId": self.template.template_id,
            "imageId": self.template.image_id,
        }

    def _network(self, name: str, args: ClusterArgs) -> Network:
        named = args.named
        wanted = NetworkArgs(args.zone, named.vpc_id, named.subnet_id, args.create_vpc, self._tags)
        return Network(name, wanted, self._child)

    def _access(self, name: str, args: ClusterArgs) -> Access:
        wanted = AccessArgs(
            physical_name=f"cloudgpu-{args.cluster}",
            vpc_id=self.network.vpc_id,
            public_key=args.public_key,
            ssh_cidrs=args.ssh_cidrs,
            key_name=args.named.key_name,
            security_group_id=args.named.security_group_id,
            tags=self._tags,
        )
        return Access(name, wanted, self._child)

    def _identity(self, name: str, args: ClusterArgs) -> Identity:
        physical_name = f"cloudgpu-{args.cluster}-{args.region}"
        return Identity(name, IdentityArgs(physical_name, args.named.role_name, self._tags), self._child)

    def _placement_group(self, name: str, args: ClusterArgs) -> aws.ec2.PlacementGroup | None:
        """One node has nobody to be near to, and a group only narrows where capacity may be found."""
        if args.nodes == 1:
            return None
        opts = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        physical_name = f"cloudgpu-{args.cluster}"
        return aws.ec2.PlacementGroup(name, name=physical_name, strategy="cluster", tags=self._tags, opts=opts)

    def _template(self, name: str, args: ClusterArgs, identity: Identity) -> Template:
        group = self.placement_group
        # Another image *setting* makes another template; see `ignore_changes` there.
        image = hashlib.sha256(args.image.encode()).hexdigest()[:8]
        wanted = TemplateArgs(
            physical_name=f"cloudgpu-{args.cluster}-{image}",
            image=args.image,
            user_data=_user_data(args),
            key_name=self.access.key_name,
            security_group_id=self.access.security_group_id,
            profile_name=identity.profile_name,
            placement_group=None if group is None else group.name,
            disk_gib=args.disk_gib,
            kms_key_id=args.named.kms_key_id,
            efa_interfaces=args.efa_interfaces,
            associate_public_address=None if args.named.subnet_id else True,
            tags=self._tags,
        )
        return Template(f"{name}-{image}", wanted, self._child)

    def _gang(self, name: str, args: ClusterArgs) -> Gang:
        wanted = GangArgs(
            nodes=args.nodes,
            instance_type=args.instance_type,
            market=args.market,
            subnet_id=self.network.subnet_id,
            template_id=self.template.template_id,
            tags=self._tags,
        )
        # A node that boots before its route exists cannot fetch what its bootstrap needs.
        before = [*self.network.routes, *(self.belt.before_nodes if self.belt is not None else [])]
        return Gang(name, wanted, pulumi.ResourceOptions(parent=self, depends_on=before))

    def _belt(self, name: str, args: ClusterArgs) -> Belt | None:
        if not args.expiry_schedule:
            return None
        wanted = BeltArgs(f"cloudgpu-{args.cluster}", args.region, args.token, args.expires_at, self._tags)
        return Belt(name, wanted, self._child)


def _user_data(args: ClusterArgs) -> str:
    try:
        return user_data(args.expires_at, args.bootstrap)
    except UserDataTooLongError as err:
        raise pulumi.RunError(str(err)) from err
