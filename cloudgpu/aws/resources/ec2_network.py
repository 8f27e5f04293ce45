"""Handlers for VPCs, subnets and internet gateways."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.resources.base import HandlerContext, Properties
from cloudgpu.aws.resources.network_part import NetworkPartHandler
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.session import Clients


class VpcHandler(NetworkPartHandler):
    """Handler for `aws:ec2/vpc:Vpc`."""

    type: ClassVar[str] = "aws:ec2/vpc:Vpc"
    kind, plural, id_key = "vpc", "Vpcs", "VpcId"
    accepts = frozenset({"cidrBlock", "enableDnsSupport", "enableDnsHostnames", "instanceTenancy"})
    requires = frozenset({"cidrBlock"})
    defaults: ClassVar[Properties] = {
        "enableDnsSupport": True,
        "enableDnsHostnames": False,
        "instanceTenancy": "default",
    }
    replaced_by = frozenset({"cidrBlock", "instanceTenancy"})

    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        tenancy = inputs["instanceTenancy"]
        response = ctx.clients.client("ec2").create_vpc(
            CidrBlock=inputs["cidrBlock"], InstanceTenancy=tenancy, TagSpecifications=tags
        )
        return str(response["Vpc"]["VpcId"])

    def _set(self, ec2: Any, vpc: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        vpc_id = vpc["VpcId"]
        ec2.modify_vpc_attribute(VpcId=vpc_id, EnableDnsSupport={"Value": bool(inputs["enableDnsSupport"])})
        ec2.modify_vpc_attribute(VpcId=vpc_id, EnableDnsHostnames={"Value": bool(inputs["enableDnsHostnames"])})

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        clients.client("ec2").delete_vpc(VpcId=physical_id)

    def _outputs(self, clients: Clients, vpc: dict[str, Any]) -> Mapping[str, Any]:
        ec2, vpc_id = clients.client("ec2"), vpc["VpcId"]
        within = [{"Name": "vpc-id", "Values": [vpc_id]}]
        with convert_errors(f"reading the defaults of VPC {vpc_id}"):
            default_filters = [*within, {"Name": "group-name", "Values": ["default"]}]
            groups = ec2.describe_security_groups(Filters=default_filters)["SecurityGroups"]
            tables = ec2.describe_route_tables(Filters=[*within, {"Name": "association.main", "Values": ["true"]}])
            lists = ec2.describe_network_acls(Filters=[*within, {"Name": "default", "Values": ["true"]}])
        table = next((route_table["RouteTableId"] for route_table in tables["RouteTables"]), "")
        return {
            "cidrBlock": vpc["CidrBlock"],
            "dhcpOptionsId": vpc.get("DhcpOptionsId", ""),
            "defaultSecurityGroupId": next((group["GroupId"] for group in groups), ""),
            "defaultRouteTableId": table,
            "mainRouteTableId": table,
            "defaultNetworkAclId": next((acl["NetworkAclId"] for acl in lists["NetworkAcls"]), ""),
        }


class SubnetHandler(NetworkPartHandler):
    """Handler for `aws:ec2/subnet:Subnet`."""

    type: ClassVar[str] = "aws:ec2/subnet:Subnet"
    kind, plural, id_key = "subnet", "Subnets", "SubnetId"
    accepts = frozenset({"vpcId", "cidrBlock", "availabilityZone", "mapPublicIpOnLaunch"})
    requires = frozenset({"vpcId", "cidrBlock"})
    defaults: ClassVar[Properties] = {"mapPublicIpOnLaunch": False}
    replaced_by = frozenset({"vpcId", "cidrBlock", "availabilityZone"})

    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        request = {"VpcId": inputs["vpcId"], "CidrBlock": inputs["cidrBlock"], "TagSpecifications": tags}
        if inputs.get("availabilityZone"):
            request["AvailabilityZone"] = inputs["availabilityZone"]
        return str(ctx.clients.client("ec2").create_subnet(**request)["Subnet"]["SubnetId"])

    def _set(self, ec2: Any, subnet: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        requested = bool(inputs["mapPublicIpOnLaunch"])
        if subnet.get("MapPublicIpOnLaunch", False) != requested:
            ec2.modify_subnet_attribute(SubnetId=subnet["SubnetId"], MapPublicIpOnLaunch={"Value": requested})

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        clients.client("ec2").delete_subnet(SubnetId=physical_id)

    def _outputs(self, clients: Clients, subnet: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        return {
            "vpcId": subnet["VpcId"],
            "cidrBlock": subnet["CidrBlock"],
            "availabilityZone": subnet["AvailabilityZone"],
            "availabilityZoneId": subnet.get("AvailabilityZoneId", ""),
        }


class InternetGatewayHandler(NetworkPartHandler):
    """Handler for `aws:ec2/internetGateway:InternetGateway`."""

    type: ClassVar[str] = "aws:ec2/internetGateway:InternetGateway"
    kind, plural, id_key = "internet-gateway", "InternetGateways", "InternetGatewayId"
    accepts = frozenset({"vpcId"})

    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:  # noqa: ARG002
        response = ctx.clients.client("ec2").create_internet_gateway(TagSpecifications=tags)
        return str(response["InternetGateway"]["InternetGatewayId"])

    def _set(self, ec2: Any, gateway: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        gateway_id, requested = gateway["InternetGatewayId"], inputs.get("vpcId")
        attached = [attachment["VpcId"] for attachment in gateway.get("Attachments") or ()]
        for vpc_id in attached:
            if vpc_id != requested:
                ec2.detach_internet_gateway(InternetGatewayId=gateway_id, VpcId=vpc_id)
        if requested and requested not in attached:
            ec2.attach_internet_gateway(InternetGatewayId=gateway_id, VpcId=requested)

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        gateway = self._by_id(clients, physical_id) or {}
        ec2 = clients.client("ec2")
        for attachment in gateway.get("Attachments") or ():
            ec2.detach_internet_gateway(InternetGatewayId=physical_id, VpcId=attachment["VpcId"])
        ec2.delete_internet_gateway(InternetGatewayId=physical_id)

    def _outputs(self, clients: Clients, gateway: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        return {"vpcId": next((attachment["VpcId"] for attachment in gateway.get("Attachments") or ()), "")}
