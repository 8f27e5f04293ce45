"""The top-level component of a cluster."""

from typing import Any

import pulumi

from alibaba_cluster.data import DataStorage
from alibaba_cluster.network import AlibabaNetwork
from alibaba_cluster.nodes import Nodes
from alibaba_cluster.settings import AlibabaArgs


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
