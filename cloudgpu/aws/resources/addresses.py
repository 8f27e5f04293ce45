"""Elastic IP addresses and their associations."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.resources.base import HandlerContext, Physical, Properties
from cloudgpu.aws.resources.described import DescribedHandler
from cloudgpu.aws.resources.network_part import NetworkPartHandler
from cloudgpu.aws.session.errors import is_gone, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import AuthError, CloudGpuError


class EipHandler(NetworkPartHandler):
    """`aws:ec2/eip:Eip`. It is attached by an `EipAssociation` or a NAT gateway."""

    type: ClassVar[str] = "aws:ec2/eip:Eip"
    kind, plural, id_key = "elastic-ip", "Addresses", "AllocationId"
    describe_call, id_filter = "describe_addresses", "allocation-id"
    accepts = frozenset({"domain"})
    defaults: ClassVar[Properties] = {"domain": "vpc"}
    replaced_by = frozenset({"domain"})

    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        made = ctx.clients.client("ec2").allocate_address(Domain=inputs["domain"], TagSpecifications=tags)
        return str(made["AllocationId"])

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        """Detach the address from its interface, then release it.

        The address of a NAT gateway cannot be detached, which AWS reports as a missing permission; it becomes free when
        the gateway is deleted.
        """
        found = self._by_id(clients, physical_id) or {}
        if found.get("AssociationId"):
            try:
                _take_away(clients, found["AssociationId"])
            except AuthError as err:
                if err.code != "AuthFailure":
                    raise
        clients.client("ec2").release_address(AllocationId=physical_id)

    def _outputs(self, clients: Clients, found: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        return {
            "allocationId": found["AllocationId"],
            "domain": found.get("Domain", "vpc"),
            "publicIp": found["PublicIp"],
            "associationId": found.get("AssociationId", ""),
            "instance": found.get("InstanceId", ""),
            "networkInterface": found.get("NetworkInterfaceId", ""),
            "privateIp": found.get("PrivateIpAddress", ""),
        }


class EipAssociationHandler(DescribedHandler):
    """`aws:ec2/eipAssociation:EipAssociation`. It is free and has no tags."""

    type: ClassVar[str] = "aws:ec2/eipAssociation:EipAssociation"
    accepts = frozenset({"allocationId", "instanceId", "networkInterfaceId", "allowReassociation"})
    requires = frozenset({"allocationId"})
    defaults: ClassVar[Properties] = {"allowReassociation": True}
    replaced_by = accepts

    def create(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        """Associate. Sending it again with the same interface answers with an association of the same two.

        Raises:
            BadRequestError: The instance has several interfaces and none is named.
            CloudError: AWS refused or cannot be reached.
        """
        names = {"instanceId": "InstanceId", "networkInterfaceId": "NetworkInterfaceId"}
        at = {name: inputs[key] for key, name in names.items() if inputs.get(key)}
        with typed(f"associating address {inputs['allocationId']} with {', '.join(at.values())}"):
            ctx.clients.client("ec2").associate_address(
                AllocationId=inputs["allocationId"], AllowReassociation=bool(inputs["allowReassociation"]), **at
            )
        found = _address(ctx.clients, "allocation-id", inputs["allocationId"]) or {}
        return _physical(found, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> Physical | None:
        """Return the association of this address and interface."""
        found = _address(ctx.clients, "allocation-id", inputs["allocationId"])
        if found is None or not found.get("AssociationId"):
            return None
        names = {"networkInterfaceId": "NetworkInterfaceId", "instanceId": "InstanceId"}
        same = any(inputs.get(key) and inputs[key] == found.get(name) for key, name in names.items())
        return _physical(found, inputs) if same else None

    def read(self, ctx: HandlerContext, physical_id: str) -> Physical | None:
        """Return the current state."""
        found = _address(ctx.clients, "association-id", physical_id)
        return _physical(found, {}) if found else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> Physical:  # noqa: ARG002
        """Never called: no property can change in place."""
        return Physical(physical_id, dict(new))

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Take the address away from the interface."""
        _take_away(ctx.clients, physical_id)


def _take_away(clients: Clients, association_id: str) -> None:
    try:
        with typed(f"deleting address association {association_id}"):
            clients.client("ec2").disassociate_address(AssociationId=association_id)
    except CloudGpuError as err:
        if not is_gone(err):
            raise


def _address(clients: Clients, name: str, value: str) -> dict[str, Any] | None:
    with typed("looking at Elastic IP addresses"):
        found = clients.client("ec2").describe_addresses(Filters=[{"Name": name, "Values": [value]}])["Addresses"]
    return next(iter(found), None)


def _physical(found: Mapping[str, Any], inputs: Properties) -> Physical:
    outputs = {
        **inputs,
        "allocationId": found.get("AllocationId", ""),
        "instanceId": found.get("InstanceId", ""),
        "networkInterfaceId": found.get("NetworkInterfaceId", ""),
        "privateIpAddress": found.get("PrivateIpAddress", ""),
        "publicIp": found.get("PublicIp", ""),
    }
    return Physical(str(found.get("AssociationId", "")), outputs)
