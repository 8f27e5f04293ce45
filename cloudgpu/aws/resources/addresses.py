"""Handlers for Elastic IP addresses, their associations, and the NAT gateways that use them."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.resources.handler import (
    DescribedHandler,
    ExistingResource,
    HandlerContext,
    NetworkPartHandler,
    Properties,
    deleting,
)
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.eventual_consistency import poll
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import AuthError, CloudError

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


class EipHandler(NetworkPartHandler):
    """Handler for `aws:ec2/eip:Eip`. The address is attached by an `EipAssociation` or a NAT gateway."""

    type: ClassVar[str] = "aws:ec2/eip:Eip"
    kind, plural, id_key = "elastic-ip", "Addresses", "AllocationId"
    describe_call, id_filter = "describe_addresses", "allocation-id"
    accepts = frozenset({"domain"})
    defaults: ClassVar[Properties] = {"domain": "vpc"}
    replaced_by = frozenset({"domain"})

    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        response = ctx.clients.client("ec2").allocate_address(Domain=inputs["domain"], TagSpecifications=tags)
        return str(response["AllocationId"])

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        """Detach the address from its interface, then release it.

        The address of a NAT gateway cannot be detached: AWS reports an authorization failure. That error is ignored,
        because deleting the gateway detaches the address.
        """
        address = self._by_id(clients, physical_id) or {}
        if address.get("AssociationId"):
            try:
                _disassociate(clients, address["AssociationId"])
            except AuthError as err:
                if err.code != "AuthFailure":
                    raise
        clients.client("ec2").release_address(AllocationId=physical_id)

    def _outputs(self, clients: Clients, address: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        return {
            "allocationId": address["AllocationId"],
            "domain": address.get("Domain", "vpc"),
            "publicIp": address["PublicIp"],
            "associationId": address.get("AssociationId", ""),
            "instance": address.get("InstanceId", ""),
            "networkInterface": address.get("NetworkInterfaceId", ""),
            "privateIp": address.get("PrivateIpAddress", ""),
        }


class EipAssociationHandler(DescribedHandler):
    """Handler for `aws:ec2/eipAssociation:EipAssociation`. An association is free and has no tags."""

    type: ClassVar[str] = "aws:ec2/eipAssociation:EipAssociation"
    accepts = frozenset({"allocationId", "instanceId", "networkInterfaceId", "allowReassociation"})
    requires = frozenset({"allocationId"})
    defaults: ClassVar[Properties] = {"allowReassociation": True}
    replaced_by = accepts

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Associate the address with the instance or interface. Idempotent."""
        names = {"instanceId": "InstanceId", "networkInterfaceId": "NetworkInterfaceId"}
        target = {name: inputs[key] for key, name in names.items() if inputs.get(key)}
        with convert_errors(f"associating address {inputs['allocationId']} with {', '.join(target.values())}"):
            ctx.clients.client("ec2").associate_address(
                AllocationId=inputs["allocationId"], AllowReassociation=bool(inputs["allowReassociation"]), **target
            )
        address = _described(ctx.clients, "allocation-id", inputs["allocationId"]) or {}
        return _physical(address, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the association of this address with this instance or interface, or None if there is none."""
        address = _described(ctx.clients, "allocation-id", inputs["allocationId"])
        if address is None or not address.get("AssociationId"):
            return None
        names = {"networkInterfaceId": "NetworkInterfaceId", "instanceId": "InstanceId"}
        same = any(inputs.get(key) and inputs[key] == address.get(name) for key, name in names.items())
        return _physical(address, inputs) if same else None

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the association does not exist."""
        address = _described(ctx.clients, "association-id", physical_id)
        return _physical(address, {}) if address else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:  # noqa: ARG002
        """Return the new inputs. Never called, because every change forces a replacement."""
        return ExistingResource(physical_id, dict(new))

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Disassociate the address from the interface."""
        _disassociate(ctx.clients, physical_id)


def _disassociate(clients: Clients, association_id: str) -> None:
    with deleting(f"deleting address association {association_id}"):
        clients.client("ec2").disassociate_address(AssociationId=association_id)


def _described(clients: Clients, name: str, value: str) -> dict[str, Any] | None:
    with convert_errors("describing Elastic IP addresses"):
        addresses = clients.client("ec2").describe_addresses(Filters=[{"Name": name, "Values": [value]}])["Addresses"]
    return next(iter(addresses), None)


def _physical(address: Mapping[str, Any], inputs: Properties) -> ExistingResource:
    outputs = {
        **inputs,
        "allocationId": address.get("AllocationId", ""),
        "instanceId": address.get("InstanceId", ""),
        "networkInterfaceId": address.get("NetworkInterfaceId", ""),
        "privateIpAddress": address.get("PrivateIpAddress", ""),
        "publicIp": address.get("PublicIp", ""),
    }
    return ExistingResource(str(address.get("AssociationId", "")), outputs)
