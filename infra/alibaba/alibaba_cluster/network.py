"""The nodes' network, and SSH access to them."""

import pulumi
import pulumi_alicloud as alicloud

from alibaba_cluster.settings import AlibabaArgs

VPC_CIDR = "10.85.0.0/16"
_SWITCH_CIDR = "10.85.0.0/17"


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
