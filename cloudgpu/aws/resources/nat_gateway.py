"""Handler for `aws:ec2/natGateway:NatGateway`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.resources.base import HandlerContext, Properties
from cloudgpu.aws.resources.network_part import NetworkPartHandler
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import poll
from cloudgpu.errors import CloudError

_DELETED_STATES = frozenset({"deleted", "failed"})
"""States that count as deleted. A failed gateway is not billed, routes no traffic, and is removed by AWS."""
_DELETION_S = 900


class NatGatewayHandler(NetworkPartHandler):
    """Handler for public NAT gateways. Creating or deleting a gateway takes a minute or two."""

    type: ClassVar[str] = "aws:ec2/natGateway:NatGateway"
    kind, plural, id_key = "natgateway", "NatGateways", "NatGatewayId"
    describe_call, id_filter = "describe_nat_gateways", "nat-gateway-id"
    appear_s = 600
    accepts = frozenset({"subnetId", "allocationId", "connectivityType"})
    requires = frozenset({"subnetId", "allocationId"})
    defaults: ClassVar[Properties] = {"connectivityType": "public"}
    replaced_by = accepts

    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        response = ctx.clients.client("ec2").create_nat_gateway(
            ClientToken=ctx.token,
            SubnetId=inputs["subnetId"],
            AllocationId=inputs["allocationId"],
            ConnectivityType=inputs["connectivityType"],
            TagSpecifications=tags,
        )
        return str(response["NatGateway"]["NatGatewayId"])

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """Delete the gateway, and wait until AWS has released its network interface and detached its Elastic IP."""
        super().delete(ctx, physical_id, outputs)
        what = f"NAT gateway {physical_id} to be deleted"
        poll(ctx.clock, lambda: self._by_id(ctx.clients, physical_id) is None or None, what=what, total_s=_DELETION_S)

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        gateway = self._by_id(clients, physical_id)
        if gateway and gateway.get("State") != "deleting":
            clients.client("ec2").delete_nat_gateway(NatGatewayId=physical_id)

    def _usable(self, clients: Clients, physical_id: str) -> dict[str, Any] | None:
        """Return the gateway if it is available, or None."""
        for gateway in self._listed(clients, [{"Name": self.id_filter, "Values": [physical_id]}]):
            if gateway.get("State") == "failed":
                message = f"NAT gateway {physical_id} failed: {gateway.get('FailureMessage') or 'AWS gave no reason'}"
                raise CloudError(
                    message, code=str(gateway.get("FailureCode") or "Failed"), hint="run the command again"
                )
            if gateway.get("State") == "available":
                return gateway
        return None

    def _described(self, clients: Clients, filters: list[dict[str, Any]]) -> dict[str, Any] | None:
        return next(
            (gateway for gateway in self._listed(clients, filters) if gateway.get("State") not in _DELETED_STATES), None
        )

    def _listed(self, clients: Clients, filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
        with convert_errors("describing NAT gateways"):
            gateways: list[dict[str, Any]] = clients.client("ec2").describe_nat_gateways(Filter=filters)[self.plural]
        return gateways

    def _outputs(self, clients: Clients, gateway: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        address: Mapping[str, Any] = next(iter(gateway.get("NatGatewayAddresses") or ()), {})
        return {
            "subnetId": gateway["SubnetId"],
            "allocationId": address.get("AllocationId", ""),
            "associationId": address.get("AssociationId", ""),
            "networkInterfaceId": address.get("NetworkInterfaceId", ""),
            "privateIp": address.get("PrivateIp", ""),
            "publicIp": address.get("PublicIp", ""),
            "connectivityType": gateway.get("ConnectivityType", "public"),
        }
