"""Elastic IPs for nodes to which EC2 assigns no public address."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws


@dataclass(frozen=True)
class PublicAddressesArgs:
    """Settings of the Elastic IPs. Each of the first `count` nodes gets one address.

    Attributes:
        separate_efa: Whether nodes have interfaces for EFA only next to the one for TCP.
        gateways: Resources that must exist before an address works: the internet gateway of a new VPC.
    """

    count: int
    gateways: Sequence[pulumi.Resource]
    tags: dict[str, str]
    separate_efa: bool = False


class PublicAddresses(pulumi.ComponentResource):
    """Elastic IPs, allocated before the nodes are launched, so that an exhausted quota is detected at no cost.

    Pass `before_nodes` to the nodes' `depends_on`.
    """

    before_nodes: list[pulumi.Resource]

    def __init__(self, name: str, args: PublicAddressesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:PublicAddresses", name, None, opts)
        self._name, self._args = name, args
        child = pulumi.ResourceOptions(parent=self, depends_on=list(args.gateways))
        self._addresses = [
            aws.ec2.Eip(f"{name}-{index}", domain="vpc", tags=args.tags, opts=child) for index in range(args.count)
        ]
        self.before_nodes = list(self._addresses)
        self.register_outputs({"publicIps": [address.public_ip for address in self._addresses]})

    def associate(self, instance_ids: pulumi.Output[list[str]]) -> None:
        """Associate each address with its node's first interface. EC2 requires an interface if a node has several."""
        for index, address in enumerate(self._addresses):
            aws.ec2.EipAssociation(
                f"{self._name}-{index}",
                allocation_id=address.id,
                network_interface_id=self._primary(instance_ids, index),
                opts=pulumi.ResourceOptions(parent=self),
            )

    def _primary(self, instance_ids: pulumi.Output[list[str]], index: int) -> pulumi.Output[str]:
        filters = [
            {"name": "attachment.instance-id", "values": [instance_ids.apply(lambda ids: ids[index])]},
            {"name": "attachment.device-index", "values": ["0"]},
        ]
        if self._args.separate_efa:
            # Every card has an interface with device index 0; only the first one is not for EFA alone.
            filters.append({"name": "interface-type", "values": ["interface"]})
        interface = aws.ec2.get_network_interface_output(filters=filters, opts=pulumi.InvokeOptions(parent=self))
        return pulumi.Output.from_input(interface.id)
