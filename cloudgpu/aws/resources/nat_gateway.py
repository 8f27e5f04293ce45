"""`aws:ec2/natGateway:NatGateway`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.resources.base import HandlerContext, Properties
from cloudgpu.aws.resources.network_part import NetworkPartHandler
from cloudgpu.aws.session.errors import typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import awaited
from cloudgpu.errors import CloudError

_GONE = frozenset({"deleted", "failed"})
"""A failed one costs nothing, serves nobody and is swept away by AWS itself."""
_END_S = 900


class NatGatewayHandler(NetworkPartHandler):
    """Public NAT gateway in one zone. Creation and deletion take a minute or two."""

    type: ClassVar[str] = "aws:ec2/natGateway:NatGateway"
    kind, plural, id_key = "natgateway", "NatGateways", "NatGatewayId"
    describe_call, id_filter = "describe_nat_gateways", "nat-gateway-id"
    appear_s = 600
    accepts = frozenset({"subnetId", "allocationId", "connectivityType"})
    requires = frozenset({"subnetId", "allocationId"})
    defaults: ClassVar[Properties] = {"connectivityType": "public"}
    replaced_by = accepts

    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        made = ctx.clients.client("ec2").create_nat_gateway(
            ClientToken=ctx.token,
            SubnetId=inputs["subnetId"],
            AllocationId=inputs["allocationId"],
            ConnectivityType=inputs["connectivityType"],
            TagSpecifications=tags,
        )
        return str(made["NatGateway"]["NatGatewayId"])

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """Delete it, and wait until its interface and address are free again."""
        super().delete(ctx, physical_id, outputs)
        what = f"NAT gateway {physical_id} to go"
        awaited(ctx.clock, lambda: self._by_id(ctx.clients, physical_id) is None or None, what=what, total_s=_END_S)

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        found = self._by_id(clients, physical_id)
        if found and found.get("State") != "deleting":
            clients.client("ec2").delete_nat_gateway(NatGatewayId=physical_id)

    def _usable(self, clients: Clients, physical_id: str) -> dict[str, Any] | None:
        """Return the gateway once it is usable. A failed gateway stays listed with its reason for an hour."""
        for found in self._listed(clients, [{"Name": self.id_filter, "Values": [physical_id]}]):
            if found.get("State") == "failed":
                message = f"NAT gateway {physical_id} failed: {found.get('FailureMessage') or 'AWS gave no reason'}"
                raise CloudError(message, code=str(found.get("FailureCode") or "Failed"), hint="run it again")
            if found.get("State") == "available":
                return found
        return None

    def _described(self, clients: Clients, filters: list[dict[str, Any]]) -> dict[str, Any] | None:
        return next((gateway for gateway in self._listed(clients, filters) if gateway.get("State") not in _GONE), None)

    def _listed(self, clients: Clients, filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
        with typed("looking at NAT gateways"):
            found: list[dict[str, Any]] = clients.client("ec2").describe_nat_gateways(Filter=filters)[self.plural]
        return found

    def _outputs(self, clients: Clients, found: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        address: Mapping[str, Any] = next(iter(found.get("NatGatewayAddresses") or ()), {})
        return {
            "subnetId": found["SubnetId"],
            "allocationId": address.get("AllocationId", ""),
            "associationId": address.get("AssociationId", ""),
            "networkInterfaceId": address.get("NetworkInterfaceId", ""),
            "privateIp": address.get("PrivateIp", ""),
            "publicIp": address.get("PublicIp", ""),
            "connectivityType": found.get("ConnectivityType", "public"),
        }
