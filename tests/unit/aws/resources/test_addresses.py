"""Lifecycles of addresses, NAT gateways, VPC endpoints and role policies."""

import json
from typing import Any, ClassVar

import pytest

from cloudgpu.aws.resources.handler import HandlerContext
from cloudgpu.aws.resources.registry import handler
from cloudgpu.errors import BadRequestError, CloudError, UnsupportedError

TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"},
        ],
    }
)
PULL = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
ZONE_SUBNET = [{"Name": "availability-zone", "Values": ["us-east-1c"]}]


def interface(ctx: HandlerContext) -> str:
    ec2 = ctx.clients.client("ec2")
    subnet = ec2.describe_subnets(Filters=ZONE_SUBNET)["Subnets"][0]["SubnetId"]
    return str(ec2.create_network_interface(SubnetId=subnet)["NetworkInterface"]["NetworkInterfaceId"])


class TestEip:
    type = "aws:ec2/eip:Eip"

    def test_elastic_ip_full_lifecycle_ends_with_idempotent_delete(self, context) -> None:
        one, ctx = handler(self.type), context("intent-1")
        inputs = one.check({"tags": {"Name": "n"}})
        assert inputs["domain"] == "vpc"
        assert one.find(ctx, inputs) is None
        made = one.create(ctx, inputs)
        assert made.id.startswith("eipalloc-")
        assert made.outputs["allocationId"] == made.id
        assert made.outputs["publicIp"]
        assert made.outputs["associationId"] == ""
        assert made.outputs["tagsAll"].items() >= {**ctx.tags, "Name": "n", "cloudgpu:intent": "intent-1"}.items()
        assert one.find(ctx, inputs) == made
        assert one.find(context("intent-2"), inputs) is None
        again = one.check({"tags": {"Other": "o"}})
        assert one.diff(inputs, again).changed == ("tags",)
        tags = one.update(context("intent-2"), made.id, inputs, again).outputs["tagsAll"]
        assert tags["Other"] == "o"
        assert "Name" not in tags
        one.delete(ctx, made.id, made.outputs)
        assert one.read(ctx, made.id) is None
        one.delete(ctx, made.id, made.outputs)

    def test_address_association_lifecycle(self, context) -> None:
        ctx = context("i")
        eip, link = handler(self.type), handler("aws:ec2/eipAssociation:EipAssociation")
        address = eip.create(ctx, eip.check({}))
        at = interface(ctx)
        inputs = link.check({"allocationId": address.id, "networkInterfaceId": at})
        assert link.find(ctx, inputs) is None
        made = link.create(ctx, inputs)
        assert made.id.startswith("eipassoc-")
        assert made.outputs["publicIp"] == address.outputs["publicIp"]
        assert link.find(ctx, inputs) == made
        assert link.find(ctx, {**inputs, "networkInterfaceId": "eni-other"}) is None
        read = link.read(ctx, made.id)
        assert read is not None
        assert read.outputs["networkInterfaceId"] == at
        assert eip.read(ctx, address.id).outputs["networkInterface"] == at
        assert link.diff(inputs, {**inputs, "networkInterfaceId": "eni-2"}).replace == ("networkInterfaceId",)
        link.delete(ctx, made.id, made.outputs)
        assert link.read(ctx, made.id) is None
        link.delete(ctx, made.id, made.outputs)

    def test_address_is_disassociated_from_instance_before_release(self, scripted, clock) -> None:
        ec2 = scripted.stub("ec2")
        there: ClassVar = {"AllocationId": "eipalloc-1", "PublicIp": "198.51.100.9", "InstanceId": "i-1"}
        ec2.add_response("describe_addresses", {"Addresses": [{**there, "AssociationId": "eipassoc-1"}]})
        ec2.add_response("disassociate_address", {}, {"AssociationId": "eipassoc-1"})
        ec2.add_response("release_address", {}, {"AllocationId": "eipalloc-1"})
        handler(self.type).delete(HandlerContext(scripted, clock, "", {}), "eipalloc-1", {})
        scripted.done()

    def test_address_release_waits_for_nat_gateway_deletion(self, scripted, clock) -> None:
        ec2 = scripted.stub("ec2")
        there: ClassVar = {"AllocationId": "eipalloc-1", "PublicIp": "198.51.100.9", "AssociationId": "eipassoc-1"}
        for _ in range(2):
            ec2.add_response("describe_addresses", {"Addresses": [there]})
            ec2.add_client_error("disassociate_address", "AuthFailure", http_status_code=400)
            ec2.add_client_error("release_address", "InvalidIPAddress.InUse", http_status_code=400)
        ec2.add_response("describe_addresses", {"Addresses": [{**there, "AssociationId": ""}]})
        ec2.add_response("release_address", {}, {"AllocationId": "eipalloc-1"})
        handler(self.type).delete(HandlerContext(scripted, clock, "", {}), "eipalloc-1", {})
        assert clock.monotonic() > 0
        scripted.done()


class TestNatGateway:
    type = "aws:ec2/natGateway:NatGateway"
    there: ClassVar = {"NatGatewayId": "nat-1", "SubnetId": "subnet-1", "VpcId": "vpc-1"}
    by_id: ClassVar = {"Filter": [{"Name": "nat-gateway-id", "Values": ["nat-1"]}]}

    def shown(self, state: str, **more: Any) -> dict[str, Any]:
        addresses = [{"AllocationId": "eipalloc-1", "PublicIp": "198.51.100.9", "NetworkInterfaceId": "eni-1"}]
        return {"NatGateways": [{**self.there, "State": state, "NatGatewayAddresses": addresses, **more}]}

    def create(self, scripted) -> None:
        tags = [{"Key": "cloudgpu:intent", "Value": "i"}]
        request = {
            "ClientToken": "i",
            "SubnetId": "subnet-1",
            "AllocationId": "eipalloc-1",
            "ConnectivityType": "public",
            "TagSpecifications": [{"ResourceType": "natgateway", "Tags": tags}],
        }
        scripted.stub("ec2").add_response("create_nat_gateway", {"NatGateway": self.there}, request)

    def test_create_and_delete_wait_for_final_state(self, scripted, clock) -> None:
        one, ctx, ec2 = handler(self.type), HandlerContext(scripted, clock, "i", {}), scripted.stub("ec2")
        self.create(scripted)
        ec2.add_response("describe_nat_gateways", self.shown("pending"), self.by_id)
        ec2.add_response("describe_nat_gateways", self.shown("available"), self.by_id)
        ec2.add_response("describe_nat_gateways", self.shown("available"), self.by_id)
        made = one.create(ctx, one.check({"subnetId": "subnet-1", "allocationId": "eipalloc-1"}))
        assert (made.id, made.outputs["publicIp"], made.outputs["networkInterfaceId"]) == (
            "nat-1",
            "198.51.100.9",
            "eni-1",
        )
        ec2.add_response("describe_nat_gateways", self.shown("available"), self.by_id)
        ec2.add_response("delete_nat_gateway", {}, {"NatGatewayId": "nat-1"})
        ec2.add_response("describe_nat_gateways", self.shown("deleting"), self.by_id)
        ec2.add_response("describe_nat_gateways", self.shown("deleted"), self.by_id)
        one.delete(ctx, "nat-1", {})
        scripted.done()

    def test_failed_creation_reports_aws_reason(self, scripted, clock) -> None:
        one, ctx = handler(self.type), HandlerContext(scripted, clock, "i", {})
        self.create(scripted)
        failed = self.shown("failed", FailureCode="Gateway.NotAttached", FailureMessage="Network vpc-1 has no gateway")
        scripted.stub("ec2").add_response("describe_nat_gateways", failed, self.by_id)
        with pytest.raises(CloudError, match="Network vpc-1 has no gateway") as caught:
            one.create(ctx, one.check({"subnetId": "subnet-1", "allocationId": "eipalloc-1"}))
        assert caught.value.code == "Gateway.NotAttached"

    def test_failed_or_deleted_gateway_reads_as_absent(self, scripted, clock) -> None:
        ctx, ec2 = HandlerContext(scripted, clock, "i", {}), scripted.stub("ec2")
        for state in ("failed", "deleted"):
            ec2.add_response("describe_nat_gateways", self.shown(state), self.by_id)
            assert handler(self.type).read(ctx, "nat-1") is None

    def test_delete_of_deleting_gateway_only_waits(self, scripted, clock) -> None:
        ec2 = scripted.stub("ec2")
        ec2.add_response("describe_nat_gateways", self.shown("deleting"), self.by_id)
        ec2.add_response("describe_nat_gateways", self.shown("deleted"), self.by_id)
        handler(self.type).delete(HandlerContext(scripted, clock, "", {}), "nat-1", {})
        scripted.done()


class TestVpcEndpoint:
    type = "aws:ec2/vpcEndpoint:VpcEndpoint"

    def test_vpc_endpoint_full_lifecycle_ends_with_idempotent_delete(self, context) -> None:
        one, ctx = handler(self.type), context("intent-1")
        ec2 = ctx.clients.client("ec2")
        vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        tables = [ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"] for _ in range(2)]
        inputs = one.check({"vpcId": vpc, "serviceName": "com.amazonaws.us-east-1.s3", "routeTableIds": tables[:1]})
        made = one.create(ctx, inputs)
        assert made.outputs["tagsAll"]["cloudgpu:intent"] == "intent-1"
        assert made.outputs["routeTableIds"] == tables[:1]
        assert one.find(ctx, inputs) == made
        assert one.find(context("intent-2"), inputs) is None
        moved = {**inputs, "routeTableIds": tables[1:]}
        assert one.diff(inputs, moved).replace == ()
        assert one.update(ctx, made.id, inputs, moved).outputs["routeTableIds"] == tables[1:]
        one.update(ctx, made.id, moved, inputs)  # moto itself moves no routes, and deletes those of the creation only
        one.delete(ctx, made.id, made.outputs)
        assert one.read(ctx, made.id) is None

    def test_interface_endpoints_are_rejected(self) -> None:
        with pytest.raises(UnsupportedError, match="type Interface"):
            handler(self.type).check({"vpcId": "vpc-1", "serviceName": "s", "vpcEndpointType": "Interface"})

    def test_error_inside_delete_response_is_raised(self, scripted, clock) -> None:
        wrong = {"ResourceId": "vpce-1", "Error": {"Code": "InvalidParameter", "Message": "it is not yours"}}
        scripted.stub("ec2").add_response("delete_vpc_endpoints", {"Unsuccessful": [wrong]})
        with pytest.raises(BadRequestError, match="it is not yours"):
            handler(self.type).delete(HandlerContext(scripted, clock, "", {}), "vpce-1", {})

    def test_route_table_update_keeps_endpoint_route(self, scripted, clock) -> None:
        """A gateway endpoint adds a route to a prefix list, which is not among the program's routes."""
        table = {
            "RouteTableId": "rtb-1",
            "VpcId": "vpc-1",
            "Routes": [
                {"DestinationCidrBlock": "10.0.0.0/16", "GatewayId": "local"},
                {"DestinationPrefixListId": "pl-63a5400a", "GatewayId": "vpce-1"},
                {"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1"},
            ],
        }
        ec2 = scripted.stub("ec2")
        for _ in range(2):
            ec2.add_response("describe_route_tables", {"RouteTables": [table]})
        one = handler("aws:ec2/routeTable:RouteTable")
        same = one.check({"vpcId": "vpc-1", "routes": [{"cidrBlock": "0.0.0.0/0", "gatewayId": "igw-1"}]})
        one.update(HandlerContext(scripted, clock, "i", {}), "rtb-1", same, same)
        scripted.done()


class TestRolePolicy:
    type = "aws:iam/rolePolicy:RolePolicy"

    def test_role_policy_full_lifecycle_ends_with_idempotent_delete(self, context) -> None:
        one, ctx = handler(self.type), context("i")
        ctx.clients.client("iam").create_role(RoleName="node", AssumeRolePolicyDocument=TRUST)
        inputs = one.check({"name": "pull", "role": "node", "policy": json.dumps(PULL)})
        assert one.find(ctx, inputs) is None
        made = one.create(ctx, inputs)
        assert made.id == "node:pull"
        assert one.find(ctx, inputs) == made
        assert json.loads(one.read(ctx, made.id).outputs["policy"]) == PULL
        narrower = {**PULL, "Statement": [{**PULL["Statement"][0], "Resource": "arn:aws:s3:::data/*"}]}
        changed = {**inputs, "policy": json.dumps(narrower)}
        assert one.diff(inputs, changed).replace == ()
        one.update(ctx, made.id, inputs, changed)
        assert json.loads(one.read(ctx, made.id).outputs["policy"]) == narrower
        one.delete(ctx, made.id, made.outputs)
        assert one.read(ctx, made.id) is None
        one.delete(ctx, made.id, made.outputs)

    def test_put_role_policy_retries_until_role_is_visible(self, scripted, clock) -> None:
        iam = scripted.stub("iam")
        iam.add_client_error("put_role_policy", "NoSuchEntity", http_status_code=404)
        iam.add_response("put_role_policy", {})
        one = handler(self.type)
        one.create(HandlerContext(scripted, clock, "i", {}), one.check({"name": "p", "role": "r", "policy": "{}"}))
        assert clock.monotonic() > 0
        scripted.done()


class TestSecurityGroupRules:
    type = "aws:ec2/securityGroup:SecurityGroup"
    ssh: ClassVar = {"protocol": "tcp", "fromPort": 22.0, "toPort": 22.0, "cidrBlocks": ["198.51.100.7/32"]}
    itself: ClassVar = {"protocol": "-1", "fromPort": 0.0, "toPort": 0.0, "self": True}

    def test_externally_added_rule_is_read(self, context) -> None:
        one, ctx = handler(self.type), context("i")
        made = one.create(ctx, one.check({"name": "demo", "ingress": [self.ssh, self.itself]}))
        assert one.read(ctx, made.id).outputs["ingress"] == made.outputs["ingress"]
        assert [(rule["cidrBlocks"], rule["self"], rule["fromPort"]) for rule in made.outputs["ingress"]] == [
            ([], True, 0),
            (["198.51.100.7/32"], False, 22),
        ]
        everybody = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        ctx.clients.client("ec2").authorize_security_group_ingress(GroupId=made.id, IpPermissions=[everybody])
        read = one.read(ctx, made.id)
        assert read.outputs["ingress"] != made.outputs["ingress"]
        assert "0.0.0.0/0" in [one for rule in read.outputs["ingress"] for one in rule["cidrBlocks"]]

    def test_group_with_rejected_rules_is_adopted_as_unsettled(self, scripted, clock) -> None:
        """The group exists: a teardown must find it, and `up` must report what is wrong with its rules."""
        tags = [{"Key": "cloudgpu:intent", "Value": "i"}]
        group = {
            "GroupId": "sg-1",
            "GroupName": "demo",
            "Description": "d",
            "IpPermissions": [],
            "IpPermissionsEgress": [],
            "Tags": tags,
        }
        ec2 = scripted.stub("ec2")
        for _ in range(2):
            ec2.add_response("describe_security_groups", {"SecurityGroups": [group]})
        ec2.add_client_error("authorize_security_group_ingress", "InvalidParameterValue", http_status_code=400)
        ec2.add_response("describe_security_groups", {"SecurityGroups": [group]})
        one = handler(self.type)
        found = one.find(HandlerContext(scripted, clock, "i", {}), one.check({"name": "demo", "ingress": [self.ssh]}))
        assert found is not None
        assert (found.id, found.settled, found.outputs["ingress"]) == ("sg-1", False, [])
        scripted.done()
