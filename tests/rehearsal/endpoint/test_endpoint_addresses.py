"""Elastic IPs, NAT gateways and VPC endpoints: rejected calls and asynchronous state changes."""

import pytest
from botocore.exceptions import ClientError

from cloudgpu.aws.ec2.tag_search import find_tagged_resources, release
from cloudgpu.aws.session.session import CloudEndpoint, connect
from cloudgpu.clock import SystemClock
from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

CARDS = 4


def refused(work, *args, **kwargs) -> str:
    with pytest.raises(ClientError) as err:
        work(*args, **kwargs)
    return str(err.value.response["Error"]["Code"])


def launch(rig, kind: str, interfaces: list[dict] | None = None) -> dict:
    more = {"NetworkInterfaces": interfaces} if interfaces else {"SubnetId": rig.subnet()}
    made = rig.ec2.run_instances(MinCount=1, MaxCount=1, ImageId=rig.ami(), InstanceType=kind, **more)
    instance_id = made["Instances"][0]["InstanceId"]
    rig.until(lambda: rig.states(instance_id) == {"running"})
    return rig.instances(instance_id)[0]


def cards(rig, **first) -> list[dict]:
    """Return the interfaces of a p4d: IP and EFA on the first card, only EFA on the others."""
    kinds = ["efa", *["efa-only"] * (CARDS - 1)]
    places = [(card, min(card, 1)) for card in range(CARDS)]
    rows = [
        {"NetworkCardIndex": card, "DeviceIndex": device, "InterfaceType": kind, "SubnetId": rig.subnet()}
        for (card, device), kind in zip(places, kinds, strict=True)
    ]
    return [{**rows[0], **first}, *rows[1:]]


def own_network(rig, *, gateway: bool = True) -> tuple[str, str]:
    vpc = rig.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = rig.ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.0.0/24", AvailabilityZone="us-east-1c")
    if gateway:
        made = rig.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        rig.ec2.attach_internet_gateway(InternetGatewayId=made, VpcId=vpc)
    return vpc, subnet["Subnet"]["SubnetId"]


def address(rig) -> str:
    return rig.ec2.allocate_address(Domain="vpc")["AllocationId"]


def gateways(rig, *ids: str) -> list[dict]:
    return rig.ec2.describe_nat_gateways(NatGatewayIds=list(ids))["NatGateways"]


def test_elastic_ips_beyond_the_region_quota_are_rejected(rig):
    for _ in range(5):
        address(rig)
    assert refused(rig.ec2.allocate_address, Domain="vpc") == "AddressLimitExceeded"
    assert rig.aws("ec2", "us-west-2").allocate_address(Domain="vpc")["AllocationId"]
    client.put_quotas(rig.cloud, {"us-east-1/elastic-ip/on-demand": 6})
    attributes = rig.ec2.describe_account_attributes(AttributeNames=["vpc-max-elastic-ips"])["AccountAttributes"]
    assert attributes[0]["AttributeValues"] == [{"AttributeValue": "6"}]
    address(rig)


def test_multi_card_instance_has_all_interfaces_and_no_public_ip(rig):
    instance = launch(rig, "p4d.24xlarge", cards(rig))
    shown = sorted(
        (row["Attachment"]["NetworkCardIndex"], row["Attachment"]["DeviceIndex"], row["InterfaceType"])
        for row in instance["NetworkInterfaces"]
    )
    assert shown == [(0, 0, "efa"), (1, 1, "efa-only"), (2, 1, "efa-only"), (3, 1, "efa-only")]
    # The default subnet gives public addresses, to instances with one interface.
    assert "PublicIpAddress" not in instance
    assert launch(rig, "g5.xlarge")["PublicIpAddress"]
    assert (
        refused(launch, rig, "p4d.24xlarge", cards(rig, AssociatePublicIpAddress=True)) == "InvalidParameterCombination"
    )
    assert refused(launch, rig, "g5.xlarge", cards(rig)[:1]) == "InvalidParameterCombination"  # it has no EFA


def test_elastic_ip_of_multi_interface_instance_requires_interface_id(rig):
    instance = launch(rig, "p4d.24xlarge", cards(rig))
    mine = address(rig)
    assert (
        refused(rig.ec2.associate_address, AllocationId=mine, InstanceId=instance["InstanceId"]) == "InvalidInstanceID"
    )
    attached = {"attachment.instance-id": instance["InstanceId"], "attachment.device-index": "0"}
    filters = [{"Name": name, "Values": [value]} for name, value in attached.items()]
    (primary,) = rig.ec2.describe_network_interfaces(Filters=filters)["NetworkInterfaces"]
    assert primary["Attachment"]["NetworkCardIndex"] == 0
    made = rig.ec2.associate_address(AllocationId=mine, NetworkInterfaceId=primary["NetworkInterfaceId"])
    (shown,) = rig.ec2.describe_addresses()["Addresses"]
    assert shown["AssociationId"] == made["AssociationId"]
    assert shown["InstanceId"] == instance["InstanceId"]
    assert rig.instances(instance["InstanceId"])[0]["PublicIpAddress"] == shown["PublicIp"]
    (primary,) = rig.ec2.describe_network_interfaces(Filters=filters)["NetworkInterfaces"]
    (private,) = primary["PrivateIpAddresses"]
    assert private["Association"] == primary["Association"]
    named = {name: private["Association"][name] for name in ("PublicIp", "AllocationId", "AssociationId")}
    assert named == {"PublicIp": shown["PublicIp"], "AllocationId": mine, "AssociationId": made["AssociationId"]}
    again = rig.ec2.associate_address(AllocationId=mine, NetworkInterfaceId=primary["NetworkInterfaceId"])
    assert again["AssociationId"] == made["AssociationId"]

    other = launch(rig, "g5.xlarge")["NetworkInterfaces"][0]["NetworkInterfaceId"]
    request = {"AllocationId": mine, "NetworkInterfaceId": other}
    assert refused(rig.ec2.associate_address, **request) == "Resource.AlreadyAssociated"
    rig.ec2.associate_address(**request, AllowReassociation=True)
    assert "PublicIpAddress" not in rig.instances(instance["InstanceId"])[0]


def test_tag_search_counts_public_addresses_that_belong_to_amazon(rig):
    instance = launch(rig, "g5.xlarge")
    rig.ec2.create_tags(Resources=[instance["InstanceId"]], Tags=[{"Key": "cloudgpu:cluster", "Value": "lab"}])

    def counted():
        aws = CloudEndpoint(rig.cloud.url, rig.cloud.access_key_id, rig.cloud.secret_access_key)
        found = find_tagged_resources(connect(aws, "us-east-1"), "lab")
        return [resource.public_addresses for resource in found if resource.kind == "instance"]

    assert instance["NetworkInterfaces"][0]["Association"]["IpOwnerId"] == "amazon"
    assert counted() == [1]
    rig.ec2.associate_address(AllocationId=address(rig), InstanceId=instance["InstanceId"])
    (interface,) = rig.instances(instance["InstanceId"])[0]["NetworkInterfaces"]
    assert interface["Association"]["IpOwnerId"] == interface["OwnerId"]
    assert counted() == [0]


def test_associated_elastic_ip_is_releasable_after_instance_termination(rig):
    instance = launch(rig, "g5.xlarge")
    mine = address(rig)
    rig.ec2.associate_address(AllocationId=mine, InstanceId=instance["InstanceId"])
    assert refused(rig.ec2.release_address, AllocationId=mine) == "InvalidIPAddress.InUse"
    rig.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    rig.until(lambda: rig.states(instance["InstanceId"]) == {"terminated"})
    assert "AssociationId" not in rig.ec2.describe_addresses()["Addresses"][0]
    rig.ec2.release_address(AllocationId=mine)
    assert rig.ec2.describe_addresses()["Addresses"] == []
    assert refused(rig.ec2.release_address, AllocationId=mine) == "InvalidAllocationID.NotFound"


def test_attached_interface_cannot_be_deleted(rig):
    interface = launch(rig, "g5.xlarge")["NetworkInterfaces"][0]["NetworkInterfaceId"]
    with pytest.raises(ClientError, match="is currently in use"):
        rig.ec2.delete_network_interface(NetworkInterfaceId=interface)


def test_elastic_ip_association_requires_an_internet_gateway(rig):
    _, subnet = own_network(rig, gateway=False)
    interface = rig.ec2.create_network_interface(SubnetId=subnet)["NetworkInterface"]["NetworkInterfaceId"]
    request = {"AllocationId": address(rig), "NetworkInterfaceId": interface}
    assert refused(rig.ec2.associate_address, **request) == "Gateway.NotAttached"


def test_nat_gateway_keeps_its_address_and_interface_until_deleted(rig):
    vpc, subnet = own_network(rig)
    mine = address(rig)
    tags = [{"ResourceType": "natgateway", "Tags": [{"Key": "cloudgpu:cluster", "Value": "c"}]}]
    request = {"SubnetId": subnet, "AllocationId": mine, "ClientToken": "t", "TagSpecifications": tags}
    nat = rig.ec2.create_nat_gateway(**request)["NatGateway"]["NatGatewayId"]
    assert rig.ec2.create_nat_gateway(**request)["NatGateway"]["NatGatewayId"] == nat
    assert [gateways(rig, nat)[0]["State"] for _ in range(3)] == ["pending", "available", "available"]
    assert len(client.list_resources(rig.cloud)["nat_gateways"]) == 1
    tagged = [{"Name": "tag:cloudgpu:cluster", "Values": ["c"]}]
    assert len(rig.ec2.describe_nat_gateways(Filter=tagged)["NatGateways"]) == 1
    assert rig.ec2.describe_nat_gateways(Filter=[{"Name": "state", "Values": ["deleted"]}])["NatGateways"] == []
    (shown,) = rig.ec2.describe_addresses()["Addresses"]
    assert refused(rig.ec2.disassociate_address, AssociationId=shown["AssociationId"]) == "AuthFailure"
    assert refused(rig.ec2.release_address, AllocationId=mine) == "InvalidIPAddress.InUse"
    held = gateways(rig, nat)[0]["NatGatewayAddresses"][0]["NetworkInterfaceId"]
    assert refused(rig.ec2.delete_network_interface, NetworkInterfaceId=held) == "InvalidParameterValue"
    assert refused(rig.ec2.delete_vpc, VpcId=vpc) == "DependencyViolation"

    rig.ec2.delete_nat_gateway(NatGatewayId=nat)
    assert refused(rig.ec2.release_address, AllocationId=mine) == "InvalidIPAddress.InUse"
    assert [gateways(rig, nat)[0]["State"] for _ in range(2)] == ["deleting", "deleted"]
    rig.ec2.release_address(AllocationId=mine)
    assert refused(rig.ec2.delete_nat_gateway, NatGatewayId=nat) == "NatGatewayNotFound"
    assert client.list_resources(rig.cloud)["nat_gateways"] == []
    assert client.list_resources(rig.cloud)["interfaces"] == []


def test_nat_gateway_that_cannot_be_created_fails_with_a_code(rig):
    _, closed = own_network(rig, gateway=False)
    first = rig.ec2.create_nat_gateway(SubnetId=closed, AllocationId=address(rig))["NatGateway"]["NatGatewayId"]
    _, subnet = own_network(rig)
    taken = address(rig)
    good = rig.ec2.create_nat_gateway(SubnetId=subnet, AllocationId=taken)["NatGateway"]["NatGatewayId"]
    second = rig.ec2.create_nat_gateway(SubnetId=subnet, AllocationId=taken)["NatGateway"]["NatGatewayId"]
    gateways(rig, first, good, second)
    rows = {row["NatGatewayId"]: (row["State"], row.get("FailureCode")) for row in gateways(rig, first, good, second)}
    assert rows == {
        first: ("failed", "Gateway.NotAttached"),
        good: ("available", None),
        second: ("failed", "Resource.AlreadyAssociated"),
    }
    assert [row["id"] for row in client.list_resources(rig.cloud)["nat_gateways"]] == [good]


def test_endpoint_routes_follow_its_route_tables(rig):
    vpc, _ = own_network(rig)
    tables = [rig.ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"] for _ in range(2)]
    service = "com.amazonaws.us-east-1.s3"
    made = rig.ec2.create_vpc_endpoint(VpcId=vpc, ServiceName=service, RouteTableIds=tables[:1])
    endpoint = made["VpcEndpoint"]["VpcEndpointId"]

    def with_route() -> list[str]:
        rows = rig.ec2.describe_route_tables(RouteTableIds=tables)["RouteTables"]
        return [
            row["RouteTableId"]
            for row in rows
            if any(one.get("GatewayId") == endpoint for one in row.get("Routes", []))
        ]

    assert with_route() == tables[:1]
    rig.ec2.modify_vpc_endpoint(VpcEndpointId=endpoint, AddRouteTableIds=tables[1:], RemoveRouteTableIds=tables[:1])
    assert with_route() == tables[1:]
    # A route of one's own beside the endpoint's stays possible.
    gateway = rig.ec2.describe_internet_gateways()["InternetGateways"][0]["InternetGatewayId"]
    rig.ec2.create_route(RouteTableId=tables[1], DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    found = rig.ec2.describe_vpc_endpoints(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["VpcEndpoints"]
    assert [row["VpcEndpointId"] for row in found] == [endpoint]
    assert rig.ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint])["Unsuccessful"] == []
    assert with_route() == []
    again = rig.ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint])["Unsuccessful"]
    assert [row["Error"]["Code"] for row in again] == ["InvalidVpcEndpoint.NotFound"]
    assert refused(rig.ec2.describe_vpc_endpoints, VpcEndpointIds=[endpoint]) == "InvalidVpcEndpointId.NotFound"


def test_vpc_with_an_endpoint_cannot_be_deleted(rig):
    vpc = rig.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    made = rig.ec2.create_vpc_endpoint(VpcId=vpc, ServiceName="com.amazonaws.us-east-1.s3")
    assert refused(rig.ec2.delete_vpc, VpcId=vpc) == "DependencyViolation"
    rig.ec2.delete_vpc_endpoints(VpcEndpointIds=[made["VpcEndpoint"]["VpcEndpointId"]])
    rig.ec2.delete_vpc(VpcId=vpc)


def test_tag_search_finds_all_network_resources_in_deletion_order(rig):
    """The order matters: the NAT gateway before its address, the endpoint before its route tables."""
    cluster = {"Key": "cloudgpu:cluster", "Value": "c"}

    def tags(kind: str) -> list[dict]:
        return [{"ResourceType": kind, "Tags": [cluster]}]

    vpc, subnet = own_network(rig)
    igw = rig.ec2.describe_internet_gateways()["InternetGateways"][0]["InternetGatewayId"]
    rig.ec2.create_tags(Resources=[vpc, subnet, igw], Tags=[cluster])
    table = rig.ec2.create_route_table(VpcId=vpc, TagSpecifications=tags("route-table"))["RouteTable"]["RouteTableId"]
    rig.ec2.associate_route_table(SubnetId=subnet, RouteTableId=table)
    rig.ec2.create_vpc_endpoint(
        VpcId=vpc,
        ServiceName="com.amazonaws.us-east-1.s3",
        RouteTableIds=[table],
        TagSpecifications=tags("vpc-endpoint"),
    )
    mine, spare = (
        rig.ec2.allocate_address(Domain="vpc", TagSpecifications=tags("elastic-ip"))["AllocationId"] for _ in range(2)
    )
    rig.ec2.create_nat_gateway(SubnetId=subnet, AllocationId=mine, TagSpecifications=tags("natgateway"))
    interface = rig.ec2.create_network_interface(SubnetId=subnet, TagSpecifications=tags("network-interface"))
    rig.ec2.associate_address(
        AllocationId=spare, NetworkInterfaceId=interface["NetworkInterface"]["NetworkInterfaceId"]
    )

    endpoint = CloudEndpoint(rig.cloud.url, rig.cloud.access_key_id, rig.cloud.secret_access_key)
    session = connect(endpoint, "us-east-1", None)
    found = find_tagged_resources(session, "c")
    assert [one.kind for one in found] == [
        "nat-gateway",
        "elastic-ip",
        "elastic-ip",
        "network-interface",
        "vpc-endpoint",
        "route-table",
        "subnet",
        "internet-gateway",
        "vpc",
    ]
    release(session, found, SystemClock())
    assert find_tagged_resources(session, "c") == ()
    assert {kind: rows for kind, rows in client.list_resources(rig.cloud).items() if rows} == {}
