"""The top-level component of a cluster."""

import hashlib
from typing import Any

import pulumi
import pulumi_aws as aws

from gpu_cluster.expiry_schedule import ExpirySchedule, ExpiryScheduleArgs
from gpu_cluster.fleet import TAGGED_AT_LAUNCH, GangArgs, GangFleet, Template, TemplateArgs
from gpu_cluster.instance_profile import IdentityArgs, NodeIdentity
from gpu_cluster.interfaces import Interface, interfaces
from gpu_cluster.network import Network, NetworkArgs, OwnNetworkArgs, PublicAddresses, PublicAddressesArgs
from gpu_cluster.node_policy import Grants
from gpu_cluster.security_group import Access, AccessArgs
from gpu_cluster.settings import ClusterArgs, cluster_tags
from gpu_cluster.user_data import UserDataTooLongError, user_data


class GpuCluster(pulumi.ComponentResource):
    """A GPU cluster: its network, SSH access, IAM identity, launch template and nodes."""

    def __init__(self, name: str, args: ClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:GpuCluster", name, None, opts)
        self._tags = cluster_tags(args)
        self._public_address = args.public_address
        self._child = pulumi.ResourceOptions(parent=self)
        self.network = self._network(name, args)
        self.access = self._access(name, args)
        self.placement_group = self._placement_group(name, args)
        self.template = self._template(name, args, self._identity(name, args))
        self.expiry_schedule = self._expiry_schedule(name, args)
        self.addresses = self._addresses(name, args)
        self.gang = self._gang(name, args)
        self.addresses.associate(self.gang.instance_ids)
        if self.expiry_schedule is not None:
            self.expiry_schedule.attach_targets(self.gang.fleet_id, self.gang.instance_ids)
        self.register_outputs({})

    def exports(self) -> dict[str, Any]:
        """Return the stack's outputs."""
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
            "publicAddress": self._public_address,
        }

    def _network(self, name: str, args: ClusterArgs) -> Network:
        own = None
        nat = args.public_address in ("nat", "private-nat")
        if args.create_vpc or nat:
            own = OwnNetworkArgs(args.zone, args.region, nat, args.ssh_cidrs, self._tags)
        subnet_id = args.named.subnet_id or args.chosen_subnet_id
        return Network(name, NetworkArgs(args.zone, args.named.vpc_id, subnet_id, own), self._child)

    def _addresses(self, name: str, args: ClusterArgs) -> PublicAddresses:
        """Create the Elastic IPs: one per node, one for the first node if it is the jump host, or none."""
        count = {"elastic": args.nodes, "nat": 1}.get(args.public_address, 0)
        separate = len(_interfaces(args)) > 1 and args.efa_layout == "separate"
        component_args = PublicAddressesArgs(count, self.network.gateways, self._tags, separate_efa=separate)
        return PublicAddresses(name, component_args, self._child)

    def _access(self, name: str, args: ClusterArgs) -> Access:
        component_args = AccessArgs(
            physical_name=f"cloudgpu-{args.cluster}",
            vpc_id=self.network.vpc_id,
            public_key=args.public_key,
            ssh_cidrs=args.ssh_cidrs,
            key_name=args.named.key_name,
            security_group_id=args.named.security_group_id,
            tags=self._tags,
        )
        return Access(name, component_args, self._child)

    def _identity(self, name: str, args: ClusterArgs) -> NodeIdentity:
        physical_name = f"cloudgpu-{args.cluster}-{args.region}"
        component_args = IdentityArgs(
            physical_name=physical_name,
            role_name=args.named.role_name,
            profile_name=args.named.instance_profile,
            region=args.region,
            token=args.token,
            grants=Grants(args.readable, args.writable, sessions=args.reach == "ssm"),
            permissions_boundary=args.named.permissions_boundary,
            tags=self._tags,
        )
        return NodeIdentity(name, component_args, self._child)

    def _placement_group(self, name: str, args: ClusterArgs) -> aws.ec2.PlacementGroup | None:
        """Create a placement group if there are several nodes.

        For a single node, a group would only reduce the available capacity. The nodes of a Capacity Block are already
        close together.
        """
        if args.nodes == 1 or args.market == "capacity-block":
            return None
        opts = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        physical_name = f"cloudgpu-{args.cluster}"
        return aws.ec2.PlacementGroup(name, name=physical_name, strategy="cluster", tags=self._tags, opts=opts)

    def _template(self, name: str, args: ClusterArgs, identity: NodeIdentity) -> Template:
        group = self.placement_group
        # A changed image setting must create a new template, because fleet.py ignores changes to the image.
        image = hashlib.sha256(args.image.encode()).hexdigest()[:8]
        component_args = TemplateArgs(
            physical_name=f"cloudgpu-{args.cluster}-{image}",
            image=args.image,
            user_data=_user_data(args),
            key_name=self.access.key_name,
            security_group_ids=(self.access.security_group_id, *args.storage_group_ids),
            profile_name=identity.profile_name,
            placement_group=None if group is None else group.name,
            disk_gib=args.disk_gib,
            kms_key_id=args.named.kms_key_id,
            interfaces=_interfaces(args),
            associate_public_address=_associates(args),
            reservation=args.reservation,
            capacity_block=args.market == "capacity-block",
            tagged=tuple(kind for kind in TAGGED_AT_LAUNCH if kind != "instance" or not args.tags_in_call),
            tags=self._tags,
        )
        return Template(f"{name}-{image}", component_args, self._child)

    def _gang(self, name: str, args: ClusterArgs) -> GangFleet:
        component_args = GangArgs(
            nodes=args.nodes,
            instance_type=args.instance_type,
            market=args.market,
            subnet_id=self.network.subnet_id,
            template_id=self.template.template_id,
            tags=self._tags,
        )
        # A node that boots before its route exists cannot download what its bootstrap script needs.
        before = [
            *self.network.routes,
            *self.addresses.before_nodes,
            *(self.expiry_schedule.before_nodes if self.expiry_schedule is not None else []),
        ]
        return GangFleet(name, component_args, pulumi.ResourceOptions(parent=self, depends_on=before))

    def _expiry_schedule(self, name: str, args: ClusterArgs) -> ExpirySchedule | None:
        if not args.expiry_schedule:
            return None
        component_args = ExpiryScheduleArgs(
            group=f"cloudgpu-{args.cluster}",
            region=args.region,
            token=args.token,
            expires_at=args.expires_at,
            permissions_boundary=args.named.permissions_boundary,
            tags=self._tags,
            role_arn=args.named.schedule_role_arn,
        )
        return ExpirySchedule(name, component_args, self._child)


def _interfaces(args: ClusterArgs) -> tuple[Interface, ...]:
    return interfaces(args.instance_type, args.efa_interfaces, args.efa_layout)


def _associates(args: ClusterArgs) -> bool | None:
    """Return whether EC2 assigns public addresses, or None to leave the setting unset.

    EC2 rejects the setting for nodes with several interfaces. In a subnet that the user selected, the subnet's own
    setting applies.
    """
    if len(_interfaces(args)) > 1:
        return None
    if args.public_address == "auto":
        return None if args.named.subnet_id else True
    return False


def _user_data(args: ClusterArgs) -> str:
    try:
        return user_data(args.expires_at, args.bootstrap)
    except UserDataTooLongError as err:
        raise pulumi.RunError(str(err)) from err
