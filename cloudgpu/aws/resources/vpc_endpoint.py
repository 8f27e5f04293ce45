"""Handler for `aws:ec2/vpcEndpoint:VpcEndpoint` with type Gateway."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.resources.base import HandlerContext, Properties
from cloudgpu.aws.resources.network_part import NetworkPartHandler
from cloudgpu.aws.session.errors import convert_errors, error_from_code, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import poll
from cloudgpu.errors import CloudGpuError, UnsupportedError

_DELETION_S = 300
_DELETED_STATES = frozenset({"deleted", "Deleted"})


class VpcEndpointHandler(NetworkPartHandler):
    """Handler for gateway endpoints, which are free. Their traffic avoids the NAT gateway's charge per GB."""

    type: ClassVar[str] = "aws:ec2/vpcEndpoint:VpcEndpoint"
    kind, plural, id_key = "vpc-endpoint", "VpcEndpoints", "VpcEndpointId"
    describe_call, id_filter = "describe_vpc_endpoints", "vpc-endpoint-id"
    accepts = frozenset({"vpcId", "serviceName", "vpcEndpointType", "routeTableIds", "policy"})
    requires = frozenset({"vpcId", "serviceName"})
    defaults: ClassVar[Properties] = {"vpcEndpointType": "Gateway"}
    replaced_by = frozenset({"vpcId", "serviceName", "vpcEndpointType"})

    def check(self, inputs: Properties) -> Properties:
        """Reject interface endpoints, which are billed per hour and need subnets and security groups."""
        checked = super().check(inputs)
        if checked["vpcEndpointType"] != "Gateway":
            message = f"{self.type}: the direct engine does not support type {checked['vpcEndpointType']}"
            raise UnsupportedError(message, code="UnsupportedProperty", hint="use Gateway, or the pulumi engine")
        return checked

    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        request = {"PolicyDocument": inputs["policy"]} if inputs.get("policy") else {}
        response = ctx.clients.client("ec2").create_vpc_endpoint(
            ClientToken=ctx.token,
            VpcId=inputs["vpcId"],
            ServiceName=inputs["serviceName"],
            VpcEndpointType=inputs["vpcEndpointType"],
            RouteTableIds=list(inputs.get("routeTableIds") or ()),
            TagSpecifications=tags,
            **request,
        )
        return str(response["VpcEndpoint"]["VpcEndpointId"])

    def _set(self, ec2: Any, endpoint: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        """Set the route tables. If the program specifies none, leave them unchanged."""
        if inputs.get("routeTableIds") is None:
            return
        requested, present = set(inputs["routeTableIds"]), set(endpoint.get("RouteTableIds") or ())
        changes = {"AddRouteTableIds": sorted(requested - present), "RemoveRouteTableIds": sorted(present - requested)}
        request = {name: ids for name, ids in changes.items() if ids}
        if request:
            ec2.modify_vpc_endpoint(VpcEndpointId=endpoint["VpcEndpointId"], **request)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """Delete the endpoint and wait until AWS has removed it and its routes."""
        super().delete(ctx, physical_id, outputs)
        what = f"VPC endpoint {physical_id} to be deleted"
        poll(ctx.clock, lambda: self._by_id(ctx.clients, physical_id) is None or None, what=what, total_s=_DELETION_S)

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        """Delete the endpoint. Raise an error for a failure that AWS reports in a successful response."""
        response = clients.client("ec2").delete_vpc_endpoints(VpcEndpointIds=[physical_id])
        for failure in response.get("Unsuccessful") or ():
            error = failure.get("Error") or {}
            raise error_from_code(
                error.get("Code", ""), error.get("Message", ""), f"deleting VPC endpoint {physical_id}"
            )

    def _by_id(self, clients: Clients, physical_id: str) -> dict[str, Any] | None:
        try:
            with convert_errors(f"describing VPC endpoint {physical_id}"):
                endpoints = clients.client("ec2").describe_vpc_endpoints(VpcEndpointIds=[physical_id])[self.plural]
        except CloudGpuError as err:
            if is_gone(err):
                return None
            raise
        return next((endpoint for endpoint in endpoints if endpoint.get("State") not in _DELETED_STATES), None)

    def _described(self, clients: Clients, filters: list[dict[str, Any]]) -> dict[str, Any] | None:
        endpoint = super()._described(clients, filters)
        return endpoint if endpoint and endpoint.get("State") not in _DELETED_STATES else None

    def _outputs(self, clients: Clients, endpoint: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        return {
            "vpcId": endpoint["VpcId"],
            "serviceName": endpoint["ServiceName"],
            "vpcEndpointType": endpoint.get("VpcEndpointType", "Gateway"),
            "routeTableIds": sorted(endpoint.get("RouteTableIds") or ()),
            "state": endpoint.get("State", ""),
        }
