"""Lifecycle of every resource handler against moto, as the engine runs it."""

import json
from typing import Any

import pytest

from cloudgpu.aws.iam_grants import BOUNDARY_GRANTS, policy
from cloudgpu.aws.resources.handler import HandlerContext
from cloudgpu.aws.resources.registry import HANDLERS, handler, invoke
from cloudgpu.errors import AuthError, BadRequestError, UnsupportedError

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEKYbLwE0XFHe0hOyX2WQfMmGCHwcDJiSsNqKuJ6rUrN ada@laptop"
TRUST = (
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", '
    '"Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}'
)
SSH = {"protocol": "tcp", "fromPort": 22.0, "toPort": 22.0, "cidrBlocks": ["198.51.100.7/32"]}
ITSELF = {"protocol": "-1", "fromPort": 0.0, "toPort": 0.0, "self": True}

INPUTS: dict[str, dict[str, Any]] = {
    "aws:ec2/keyPair:KeyPair": {"keyName": "demo", "publicKey": PUBLIC_KEY},
    "aws:ec2/securityGroup:SecurityGroup": {"name": "demo", "ingress": [SSH, ITSELF], "egress": [ITSELF]},
    "aws:iam/role:Role": {"name": "demo", "assumeRolePolicy": TRUST},
    "aws:iam/instanceProfile:InstanceProfile": {"name": "demo"},
    "aws:ec2/launchTemplate:LaunchTemplate": {"name": "demo", "imageId": "ami-12345678", "userData": "aGk="},
    "aws:ec2/vpc:Vpc": {"cidrBlock": "10.84.0.0/16", "enableDnsHostnames": True},
    "aws:ec2/internetGateway:InternetGateway": {},
}
COMPUTED = {
    "aws:ec2/keyPair:KeyPair": {"keyPairId", "keyType", "fingerprint"},
    "aws:ec2/securityGroup:SecurityGroup": {"arn", "ownerId", "vpcId"},
    "aws:iam/role:Role": {"arn", "uniqueId", "createDate"},
    "aws:iam/instanceProfile:InstanceProfile": {"arn", "uniqueId", "createDate"},
    "aws:ec2/launchTemplate:LaunchTemplate": {"arn", "latestVersion", "defaultVersion"},
    "aws:ec2/vpc:Vpc": {"arn", "ownerId", "defaultSecurityGroupId", "mainRouteTableId", "defaultNetworkAclId"},
    "aws:ec2/internetGateway:InternetGateway": {"arn", "ownerId"},
}


@pytest.mark.parametrize("type_token", INPUTS)
def test_full_lifecycle_ends_with_idempotent_delete(type_token: str, context) -> None:
    one, ctx = handler(type_token), context("intent-1")
    inputs = one.check({**INPUTS[type_token], "tags": {"Name": "n"}})
    assert one.find(ctx, inputs) is None

    made = one.create(ctx, inputs)
    assert all(made.outputs[key] not in ("", None) for key in COMPUTED[type_token])
    assert made.outputs["tags"] == {"Name": "n"}
    assert made.outputs["tagsAll"].items() >= {**ctx.tags, "Name": "n", "cloudgpu:intent": "intent-1"}.items()

    found = one.find(ctx, inputs)
    assert found == made
    assert one.find(context("intent-2"), inputs) is None
    read = one.read(ctx, made.id)
    assert read is not None
    assert read.id == made.id

    again = one.check({**inputs, "tags": {"Other": "o"}})
    assert one.diff(inputs, again).replace == ()
    assert one.diff(inputs, again).changed == ("tags",)
    changed = one.update(context("intent-2"), made.id, inputs, again)
    assert changed.id == made.id
    tags = changed.outputs["tagsAll"]
    if type_token == "aws:ec2/launchTemplate:LaunchTemplate":  # moto describes it with the tags of its creation
        filters = [{"Name": "resource-id", "Values": [made.id]}]
        tags = {one["Key"]: one["Value"] for one in ctx.clients.client("ec2").describe_tags(Filters=filters)["Tags"]}
    assert tags["Other"] == "o"
    assert "Name" not in tags
    assert tags["cloudgpu:token"] == "tok"

    one.delete(ctx, made.id, made.outputs)
    assert one.read(ctx, made.id) is None
    one.delete(ctx, made.id, made.outputs)


@pytest.mark.parametrize("type_token", sorted(HANDLERS))
def test_unknown_property_is_rejected_by_name(type_token: str) -> None:
    with pytest.raises(UnsupportedError, match="noSuchThing") as caught:
        handler(type_token).check({"noSuchThing": 1})
    assert type_token in caught.value.message


@pytest.mark.parametrize("type_token", sorted(token for token in HANDLERS if HANDLERS[token].requires))
def test_missing_property_is_named_in_error(type_token: str) -> None:
    with pytest.raises(BadRequestError, match=sorted(handler(type_token).requires)[0]):
        handler(type_token).check({})


def test_null_property_equals_absent_property() -> None:
    one = handler("aws:ec2/keyPair:KeyPair")
    assert one.check({**INPUTS[one.type], "keyNamePrefix": None}) == INPUTS[one.type]


def test_unknown_nested_property_is_rejected_by_path() -> None:
    template = handler("aws:ec2/launchTemplate:LaunchTemplate")
    with pytest.raises(UnsupportedError, match=r"networkInterfaces\.enaQueueCount"):
        template.check({"name": "x", "networkInterfaces": [{"deviceIndex": 0, "enaQueueCount": 4}]})
    with pytest.raises(UnsupportedError, match=r"blockDeviceMappings\.ebs\.magic"):
        template.check({"name": "x", "blockDeviceMappings": [{"ebs": {"magic": True}}]})


def test_unknown_values_pass_check() -> None:
    unknown = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
    one = handler("aws:ec2/launchTemplate:LaunchTemplate")
    assert one.check({"name": "x", "networkInterfaces": unknown})["networkInterfaces"] == unknown


def test_unsupported_types_and_functions_are_named_in_error(session) -> None:
    with pytest.raises(UnsupportedError, match="aws:s3/bucketPolicy:BucketPolicy"):
        handler("aws:s3/bucketPolicy:BucketPolicy")
    with pytest.raises(UnsupportedError, match="aws:ec2/getKeyPair:getKeyPair"):
        invoke("aws:ec2/getKeyPair:getKeyPair", {}, session)


def test_taken_name_error_suggests_another_cluster_name(context) -> None:
    for token in ("aws:ec2/keyPair:KeyPair", "aws:ec2/securityGroup:SecurityGroup", "aws:iam/role:Role"):
        one = handler(token)
        inputs = one.check(INPUTS[token])
        one.create(context("intent-1"), inputs)
        with pytest.raises(BadRequestError) as caught:
            one.create(context("intent-2"), inputs)
        assert "another cluster name" in caught.value.hint


class TestSecurityGroup:
    type = "aws:ec2/securityGroup:SecurityGroup"

    def rules(self, ctx, group_id: str) -> tuple[Any, Any]:
        (group,) = ctx.clients.client("ec2").describe_security_groups(GroupIds=[group_id])["SecurityGroups"]
        return group["IpPermissions"], group["IpPermissionsEgress"]

    def test_group_without_egress_allows_no_outbound_traffic(self, context) -> None:
        one, ctx = handler(self.type), context("i")
        made = one.create(ctx, one.check({"name": "closed"}))
        assert self.rules(ctx, made.id) == ([], [])

    def test_interrupted_creation_is_completed_by_find(self, context) -> None:
        one, ctx = handler(self.type), context("i")
        bare = one.create(ctx, one.check({"name": "demo"}))
        whole = one.check(INPUTS[self.type])
        found = one.find(ctx, whole)
        assert found is not None
        assert found.id == bare.id
        ingress, egress = self.rules(ctx, found.id)
        assert {rule["IpProtocol"] for rule in ingress} == {"tcp", "-1"}
        assert [pair["GroupId"] for rule in egress for pair in rule["UserIdGroupPairs"]] == [bare.id]

    def test_rule_drift_is_reported_and_repaired_in_place(self, context) -> None:
        one, ctx = handler(self.type), context("i")
        inputs = one.check(INPUTS[self.type])
        made = one.create(ctx, inputs)
        assert one.drift(ctx, made.id, inputs) == ()
        ec2, before = ctx.clients.client("ec2"), self.rules(ctx, made.id)
        world = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        itself = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": made.id}]}
        ec2.authorize_security_group_ingress(GroupId=made.id, IpPermissions=[world])
        ec2.revoke_security_group_egress(GroupId=made.id, IpPermissions=[itself])
        assert one.drift(ctx, made.id, inputs) == (
            f"security group {made.id}: an extra rule allowed tcp 22 from 0.0.0.0/0",
            f"security group {made.id}: the rule that allows all traffic to {made.id} was missing",
        )
        one.update(ctx, made.id, inputs, inputs)
        assert one.drift(ctx, made.id, inputs) == ()
        assert self.rules(ctx, made.id) == before

    def test_ssh_source_address_change_updates_rule_in_place(self, context) -> None:
        one, ctx = handler(self.type), context("i")
        old = one.check(INPUTS[self.type])
        made = one.create(ctx, old)
        new = one.check({**old, "ingress": [{**SSH, "cidrBlocks": ["203.0.113.9/32"]}, ITSELF]})
        assert one.diff(old, new).replace == ()
        one.update(ctx, made.id, old, new)
        ingress, _ = self.rules(ctx, made.id)
        assert [span["CidrIp"] for rule in ingress for span in rule["IpRanges"]] == ["203.0.113.9/32"]
        assert [pair["GroupId"] for rule in ingress for pair in rule["UserIdGroupPairs"]] == [made.id]

    def test_rule_description_change_is_applied(self, context) -> None:
        one, ctx = handler(self.type), context("i")
        old = one.check({"name": "d", "ingress": [{**SSH, "description": "old"}]})
        made = one.create(ctx, old)
        one.update(ctx, made.id, old, one.check({"name": "d", "ingress": [{**SSH, "description": "new"}]}))
        ingress, _ = self.rules(ctx, made.id)
        assert [span["Description"] for rule in ingress for span in rule["IpRanges"]] == ["new"]

    def test_name_or_description_change_replaces_group(self) -> None:
        one = handler(self.type)
        old = one.check({"name": "a"})
        assert one.diff(old, one.check({"name": "b", "description": "x"})).replace == ("description", "name")


class TestRole:
    type = "aws:iam/role:Role"

    def test_role_policies_are_attached_and_removed_on_update(self, context) -> None:
        one, ctx = handler(self.type), context("i")
        iam = ctx.clients.client("iam")
        document = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:Get*", "Resource": "*"}]}'
        arn = iam.create_policy(PolicyName="p", PolicyDocument=document)["Policy"]["Arn"]
        old = one.check(
            {
                **INPUTS[self.type],
                "managedPolicyArns": [arn],
                "inlinePolicies": [{"name": "in", "policy": document}],
            }
        )
        made = one.create(ctx, old)
        assert [p["PolicyArn"] for p in iam.list_attached_role_policies(RoleName="demo")["AttachedPolicies"]] == [arn]
        assert iam.list_role_policies(RoleName="demo")["PolicyNames"] == ["in"]
        new = one.check({**old, "managedPolicyArns": [], "inlinePolicies": [], "description": "d"})
        one.update(ctx, made.id, old, new)
        assert iam.list_attached_role_policies(RoleName="demo")["AttachedPolicies"] == []
        assert iam.list_role_policies(RoleName="demo")["PolicyNames"] == []
        assert iam.get_role(RoleName="demo")["Role"]["Description"] == "d"

    def test_role_is_created_with_its_boundary(self, context) -> None:
        iam, one, ctx = context("i").clients.client("iam"), handler(self.type), context("i")
        arn = iam.create_policy(PolicyName="limit", PolicyDocument=json.dumps(policy(BOUNDARY_GRANTS)))["Policy"]["Arn"]
        one.create(ctx, one.check({**INPUTS[self.type], "permissionsBoundary": arn}))
        assert iam.get_role(RoleName="demo")["Role"]["PermissionsBoundary"]["PermissionsBoundaryArn"] == arn

    @pytest.mark.parametrize("boundary", ["", "arn:aws:iam::aws:policy/x"])
    def test_denied_role_without_boundary_names_the_setting(self, scripted, clock, boundary) -> None:
        one = handler(self.type)
        scripted.stub("iam").add_client_error("create_role", "AccessDenied", "not authorized", 403)
        with pytest.raises(AuthError) as caught:
            one.create(
                HandlerContext(scripted, clock, "", {}),
                one.check({**INPUTS[self.type], "permissionsBoundary": boundary}),
            )
        assert ("permissions_boundary" in caught.value.hint) is (not boundary)

    def test_role_is_detached_from_profile_before_delete(self, context) -> None:
        role, profile, ctx = handler(self.type), handler("aws:iam/instanceProfile:InstanceProfile"), context("i")
        made = role.create(ctx, role.check(INPUTS[self.type]))
        held = profile.create(ctx, profile.check({"name": "demo", "role": "demo"}))
        assert held.outputs["role"] == "demo"
        role.delete(ctx, made.id, made.outputs)
        assert role.read(ctx, made.id) is None


class TestInstanceProfile:
    type = "aws:iam/instanceProfile:InstanceProfile"

    def test_interrupted_profile_creation_gets_role_on_find(self, context) -> None:
        role, one, ctx = handler("aws:iam/role:Role"), handler(self.type), context("i")
        role.create(ctx, role.check(INPUTS[role.type]))
        one.create(ctx, one.check({"name": "demo"}))
        found = one.find(ctx, one.check({"name": "demo", "role": "demo"}))
        assert found is not None
        assert found.outputs["role"] == "demo"

    def test_profile_update_switches_role(self, context) -> None:
        role, one, ctx = handler("aws:iam/role:Role"), handler(self.type), context("i")
        for name in ("first", "second"):
            role.create(ctx, role.check({"name": name, "assumeRolePolicy": TRUST}))
        old, new = one.check({"name": "demo", "role": "first"}), one.check({"name": "demo", "role": "second"})
        made = one.create(ctx, old)
        assert one.update(ctx, made.id, old, new).outputs["role"] == "second"
        one.delete(ctx, made.id, {})
        assert role.read(ctx, "second") is not None


class TestLaunchTemplate:
    type = "aws:ec2/launchTemplate:LaunchTemplate"

    def test_property_change_creates_version_and_tags_do_not(self, context) -> None:
        one, ctx = handler(self.type), context("i")
        old = one.check({**INPUTS[self.type], "updateDefaultVersion": True})
        made = one.create(ctx, old)
        assert (made.outputs["latestVersion"], made.outputs["defaultVersion"]) == (1, 1)
        tagged = one.update(ctx, made.id, old, {**old, "tags": {"a": "b"}})
        assert tagged.outputs["latestVersion"] == 1
        changed = one.update(context("j"), made.id, old, {**old, "imageId": "ami-87654321"})
        assert (changed.outputs["latestVersion"], changed.outputs["defaultVersion"]) == (2, 2)


def test_network_lifecycle_from_vpc_to_route_association(context) -> None:
    ctx = context("net")
    ec2 = ctx.clients.client("ec2")

    def make(kind: str, **inputs: Any) -> Any:
        one = handler(f"aws:ec2/{kind[0].lower()}{kind[1:]}:{kind}")
        checked = one.check(inputs)
        made = one.create(ctx, checked)
        assert one.find(ctx, checked).id == made.id
        assert one.read(ctx, made.id).id == made.id
        return one, made

    vpc = make("Vpc", cidrBlock="10.84.0.0/16", enableDnsHostnames=True)
    gateway = make("InternetGateway", vpcId=vpc[1].id)
    subnet = make(
        "Subnet",
        vpcId=vpc[1].id,
        cidrBlock="10.84.0.0/17",
        availabilityZone="us-east-1c",
        mapPublicIpOnLaunch=True,
    )
    routes = [{"cidrBlock": "0.0.0.0/0", "gatewayId": gateway[1].id}]
    table = make("RouteTable", vpcId=vpc[1].id, routes=routes)
    link = make("RouteTableAssociation", subnetId=subnet[1].id, routeTableId=table[1].id)

    hostnames = ec2.describe_vpc_attribute(VpcId=vpc[1].id, Attribute="enableDnsHostnames")
    assert hostnames["EnableDnsHostnames"]["Value"] is True
    assert subnet[1].outputs["availabilityZone"] == "us-east-1c"
    (described,) = ec2.describe_subnets(SubnetIds=[subnet[1].id])["Subnets"]
    assert described["MapPublicIpOnLaunch"] is True
    (described,) = ec2.describe_route_tables(RouteTableIds=[table[1].id])["RouteTables"]
    assert [r["GatewayId"] for r in described["Routes"] if r.get("DestinationCidrBlock") == "0.0.0.0/0"] == [
        gateway[1].id
    ]

    for one, made in (link, table, subnet, gateway, vpc):
        one.delete(ctx, made.id, made.outputs)
        assert one.read(ctx, made.id) is None
        one.delete(ctx, made.id, made.outputs)


def test_route_table_update_replaces_routes(context) -> None:
    ctx = context("i")
    vpc, gateway, table = (
        handler(f"aws:ec2/{name}") for name in ("vpc:Vpc", "internetGateway:InternetGateway", "routeTable:RouteTable")
    )
    vpc_id = vpc.create(ctx, vpc.check({"cidrBlock": "10.0.0.0/16"})).id
    gateway_id = gateway.create(ctx, gateway.check({"vpcId": vpc_id})).id
    old = table.check({"vpcId": vpc_id, "routes": [{"cidrBlock": "0.0.0.0/0", "gatewayId": gateway_id}]})
    new = table.check({"vpcId": vpc_id, "routes": [{"cidrBlock": "192.0.2.0/24", "gatewayId": gateway_id}]})
    made = table.create(ctx, old)
    table.update(ctx, made.id, old, new)
    (described,) = ctx.clients.client("ec2").describe_route_tables(RouteTableIds=[made.id])["RouteTables"]
    destinations = {route["DestinationCidrBlock"] for route in described["Routes"]}
    assert destinations == {"10.0.0.0/16", "192.0.2.0/24"}


def test_group_delete_retries_on_dependency_violation(scripted, clock) -> None:
    from cloudgpu.aws.resources.handler import HandlerContext

    ec2 = scripted.stub("ec2")
    for _ in range(3):
        ec2.add_client_error("delete_security_group", "DependencyViolation", http_status_code=400)
    ec2.add_response("delete_security_group", {}, {"GroupId": "sg-1"})
    handler("aws:ec2/securityGroup:SecurityGroup").delete(HandlerContext(scripted, clock, "", {}), "sg-1", {})
    assert clock.monotonic() > 0
    scripted.done()


def test_denied_delete_raises_auth_error(scripted, clock) -> None:
    from cloudgpu.aws.resources.handler import HandlerContext
    from cloudgpu.errors import AuthError

    scripted.stub("ec2").add_client_error("delete_security_group", "UnauthorizedOperation", http_status_code=403)
    with pytest.raises(AuthError):
        handler("aws:ec2/securityGroup:SecurityGroup").delete(HandlerContext(scripted, clock, "", {}), "sg-1", {})


def test_placement_group_lifecycle(scripted, clock) -> None:
    from cloudgpu.aws.resources.handler import HandlerContext

    one, ctx, ec2 = (
        handler("aws:ec2/placementGroup:PlacementGroup"),
        HandlerContext(scripted, clock, "i", {}),
        scripted.stub("ec2"),
    )
    group = {"GroupName": "g", "GroupId": "pg-1", "Strategy": "cluster", "GroupArn": "arn"}
    tags = [{"Key": "cloudgpu:intent", "Value": "i"}]
    ec2.add_response(
        "create_placement_group",
        {"PlacementGroup": group},
        {
            "GroupName": "g",
            "Strategy": "cluster",
            "TagSpecifications": [{"ResourceType": "placement-group", "Tags": tags}],
        },
    )
    ec2.add_response("describe_placement_groups", {"PlacementGroups": [{**group, "State": "pending"}]})
    ec2.add_response("describe_placement_groups", {"PlacementGroups": [{**group, "State": "available", "Tags": tags}]})
    made = one.create(ctx, one.check({"name": "g", "strategy": "cluster"}))
    assert (made.id, made.outputs["placementGroupId"], made.outputs["arn"]) == ("g", "pg-1", "arn")

    ec2.add_client_error("delete_placement_group", "InvalidPlacementGroup.InUse", http_status_code=400)
    ec2.add_response("delete_placement_group", {})
    ec2.add_response("describe_placement_groups", {"PlacementGroups": [{**group, "State": "deleting"}]})
    ec2.add_client_error("describe_placement_groups", "InvalidPlacementGroup.Unknown", http_status_code=400)
    one.delete(ctx, "g", {})
    scripted.done()
