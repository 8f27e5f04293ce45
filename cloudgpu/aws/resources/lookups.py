"""Lookups for Pulumi programs: the functions of Pulumi's AWS provider that the direct engine implements."""

from collections.abc import Callable, Mapping
from typing import Any

from cloudgpu.aws.ec2.tagging import tags_to_dict
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import BadRequestError, UnsupportedError

Arguments = Mapping[str, Any]
Lookup = Callable[[Arguments, Clients], dict[str, Any]]


def get_vpc(args: Arguments, clients: Clients) -> dict[str, Any]:
    """Implement `aws:ec2/getVpc:getVpc`."""
    _check_arguments("aws:ec2/getVpc:getVpc", args, {"default", "id", "cidrBlock", "state", "filters", "tags"})
    filters = _filters(args, {"id": "vpc-id", "cidrBlock": "cidr", "state": "state"})
    if args.get("default"):
        filters.append({"Name": "is-default", "Values": ["true"]})
    with convert_errors("looking for the VPC"):
        vpcs = clients.client("ec2").describe_vpcs(Filters=filters)["Vpcs"]
    hint = "create a default VPC with `aws ec2 create-default-vpc`, set vpcId, or set createVpc"
    vpc = _single(vpcs, f"VPC in {clients.region}", hint)
    return {
        "id": vpc["VpcId"],
        "cidrBlock": vpc["CidrBlock"],
        "default": vpc.get("IsDefault", False),
        "state": vpc.get("State", ""),
        "ownerId": vpc.get("OwnerId", ""),
        "dhcpOptionsId": vpc.get("DhcpOptionsId", ""),
        "instanceTenancy": vpc.get("InstanceTenancy", ""),
        "arn": f"arn:aws:ec2:{clients.region}:{vpc.get('OwnerId', '')}:vpc/{vpc['VpcId']}",
        "region": clients.region,
        "tags": tags_to_dict(vpc.get("Tags")),
    }


def get_subnets(args: Arguments, clients: Clients) -> dict[str, Any]:
    """Implement `aws:ec2/getSubnets:getSubnets`."""
    _check_arguments("aws:ec2/getSubnets:getSubnets", args, {"filters", "tags"})
    ids = sorted(subnet["SubnetId"] for subnet in _subnets(_filters(args, {}), clients))
    return {"id": clients.region, "ids": ids, "region": clients.region, "tags": dict(args.get("tags") or {})}


def get_subnet(args: Arguments, clients: Clients) -> dict[str, Any]:
    """Implement `aws:ec2/getSubnet:getSubnet`."""
    names = {"id": "subnet-id", "vpcId": "vpc-id", "availabilityZone": "availability-zone", "cidrBlock": "cidr-block"}
    _check_arguments("aws:ec2/getSubnet:getSubnet", args, {*names, "filters", "tags", "defaultForAz"})
    filters = _filters(args, names)
    if args.get("defaultForAz"):
        filters.append({"Name": "default-for-az", "Values": ["true"]})
    subnet = _single(_subnets(filters, clients), f"subnet in {clients.region}", "check the subnet ID and the region")
    return {
        "id": subnet["SubnetId"],
        "arn": subnet.get("SubnetArn", ""),
        "vpcId": subnet["VpcId"],
        "availabilityZone": subnet["AvailabilityZone"],
        "availabilityZoneId": subnet.get("AvailabilityZoneId", ""),
        "availableIpAddressCount": subnet.get("AvailableIpAddressCount", 0),
        "cidrBlock": subnet["CidrBlock"],
        "defaultForAz": subnet.get("DefaultForAz", False),
        "mapPublicIpOnLaunch": subnet.get("MapPublicIpOnLaunch", False),
        "ownerId": subnet.get("OwnerId", ""),
        "state": subnet.get("State", ""),
        "region": clients.region,
        "tags": tags_to_dict(subnet.get("Tags")),
    }


def get_network_interface(args: Arguments, clients: Clients) -> dict[str, Any]:
    """Implement `aws:ec2/getNetworkInterface:getNetworkInterface`."""
    _check_arguments("aws:ec2/getNetworkInterface:getNetworkInterface", args, {"id", "filters", "tags"})
    filters = _filters(args, {"id": "network-interface-id"})
    with convert_errors("looking for the network interface"):
        interfaces = clients.client("ec2").describe_network_interfaces(Filters=filters)["NetworkInterfaces"]
    interface = _single(
        interfaces, f"network interface in {clients.region}", "run the command again: the instance may have terminated"
    )
    interface_id = interface["NetworkInterfaceId"]
    attachment = interface.get("Attachment") or {}
    return {
        "id": interface_id,
        "arn": f"arn:aws:ec2:{clients.region}:{interface.get('OwnerId', '')}:network-interface/{interface_id}",
        "attachments": [
            {
                "attachmentId": attachment.get("AttachmentId", ""),
                "deviceIndex": attachment.get("DeviceIndex", 0),
                "instanceId": attachment.get("InstanceId", ""),
                "networkCardIndex": attachment.get("NetworkCardIndex", 0),
            }
        ]
        if attachment
        else [],
        "availabilityZone": interface.get("AvailabilityZone", ""),
        "interfaceType": interface.get("InterfaceType", ""),
        "macAddress": interface.get("MacAddress", ""),
        "ownerId": interface.get("OwnerId", ""),
        "privateIp": interface.get("PrivateIpAddress", ""),
        "securityGroups": [group["GroupId"] for group in interface.get("Groups") or ()],
        "subnetId": interface.get("SubnetId", ""),
        "vpcId": interface.get("VpcId", ""),
        "region": clients.region,
        "tags": tags_to_dict(interface.get("TagSet")),
    }


def get_ami(args: Arguments, clients: Clients) -> dict[str, Any]:
    """Implement `aws:ec2/getAmi:getAmi`."""
    _check_arguments(
        "aws:ec2/getAmi:getAmi", args, {"filters", "owners", "mostRecent", "executableUsers", "includeDeprecated"}
    )
    request: dict[str, Any] = {"Filters": _filters(args, {}), "IncludeDeprecated": bool(args.get("includeDeprecated"))}
    for key, name in (("owners", "Owners"), ("executableUsers", "ExecutableUsers")):
        if args.get(key):
            request[name] = list(args[key])
    with convert_errors("looking for the machine image"):
        images = clients.client("ec2").describe_images(**request)["Images"]
    if args.get("mostRecent"):
        images = sorted(images, key=lambda image: str(image.get("CreationDate", "")))[-1:]
    image = _single(
        images, f"machine image in {clients.region}", "check the image ID and that the image is in this region"
    )
    return {
        "id": image["ImageId"],
        "imageId": image["ImageId"],
        "architecture": image.get("Architecture", ""),
        "creationDate": image.get("CreationDate", ""),
        "name": image.get("Name", ""),
        "ownerId": image.get("OwnerId", ""),
        "rootDeviceName": image.get("RootDeviceName") or "/dev/sda1",
        "rootDeviceType": image.get("RootDeviceType", ""),
        "state": image.get("State", ""),
        "region": clients.region,
        "tags": tags_to_dict(image.get("Tags")),
    }


def get_parameter(args: Arguments, clients: Clients) -> dict[str, Any]:
    """Implement `aws:ssm/getParameter:getParameter`."""
    _check_arguments("aws:ssm/getParameter:getParameter", args, {"name", "withDecryption"})
    decrypt = args.get("withDecryption", True) is not False
    with convert_errors(f"reading the parameter {args['name']} in {clients.region}"):
        parameter = clients.client("ssm").get_parameter(Name=args["name"], WithDecryption=decrypt)["Parameter"]
    return {
        "id": parameter["Name"],
        "name": parameter["Name"],
        "arn": parameter.get("ARN", ""),
        "type": parameter.get("Type", ""),
        "value": parameter["Value"],
        "insecureValue": "" if parameter.get("Type") == "SecureString" else parameter["Value"],
        "version": parameter.get("Version", 0),
        "withDecryption": decrypt,
        "region": clients.region,
    }


def get_caller_identity(args: Arguments, clients: Clients) -> dict[str, Any]:
    """Implement `aws:index/getCallerIdentity:getCallerIdentity`."""
    _check_arguments("aws:index/getCallerIdentity:getCallerIdentity", args, set())
    with convert_errors("reading the caller's identity"):
        caller = clients.client("sts").get_caller_identity()
    return {
        "id": caller["Account"],
        "accountId": caller["Account"],
        "arn": caller["Arn"],
        "userId": caller["UserId"],
    }


def get_region(args: Arguments, clients: Clients) -> dict[str, Any]:
    """Implement `aws:index/getRegion:getRegion`."""
    _check_arguments("aws:index/getRegion:getRegion", args, set())
    region = clients.region
    return {"id": region, "name": region, "region": region, "endpoint": f"ec2.{region}.amazonaws.com"}


def get_availability_zones(args: Arguments, clients: Clients) -> dict[str, Any]:
    """Implement `aws:index/getAvailabilityZones:getAvailabilityZones`."""
    token = "aws:index/getAvailabilityZones:getAvailabilityZones"  # noqa: S105 a name in Pulumi's schema
    _check_arguments(token, args, {"state", "filters", "allAvailabilityZones"})
    request = {
        "Filters": _filters(args, {"state": "state"}),
        "AllAvailabilityZones": bool(args.get("allAvailabilityZones")),
    }
    with convert_errors(f"listing the zones of {clients.region}"):
        zones = clients.client("ec2").describe_availability_zones(**request)["AvailabilityZones"]
    zones = sorted(zones, key=lambda zone: str(zone["ZoneName"]))
    return {
        "id": clients.region,
        "names": [zone["ZoneName"] for zone in zones],
        "zoneIds": [zone.get("ZoneId", "") for zone in zones],
        "groupNames": sorted({zone.get("GroupName", "") for zone in zones}),
        "region": clients.region,
    }


LOOKUPS: Mapping[str, Lookup] = {
    "aws:ec2/getVpc:getVpc": get_vpc,
    "aws:ec2/getSubnets:getSubnets": get_subnets,
    "aws:ec2/getSubnet:getSubnet": get_subnet,
    "aws:ec2/getNetworkInterface:getNetworkInterface": get_network_interface,
    "aws:ec2/getAmi:getAmi": get_ami,
    "aws:ssm/getParameter:getParameter": get_parameter,
    "aws:index/getCallerIdentity:getCallerIdentity": get_caller_identity,
    "aws:index/getRegion:getRegion": get_region,
    "aws:index/getAvailabilityZones:getAvailabilityZones": get_availability_zones,
}


def _check_arguments(token: str, args: Arguments, supported: set[str]) -> None:
    unknown = sorted(key for key, value in args.items() if value is not None and key not in supported)
    if unknown:
        message = f"{token}: the direct engine does not support {', '.join(unknown)}"
        raise UnsupportedError(
            message, code="UnsupportedProperty", hint="omit these arguments, or use the pulumi engine"
        )


def _filters(args: Arguments, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Convert the shorthand arguments, tags and explicit filters of a lookup to AWS filters."""
    shorthand = [{"Name": name, "Values": [args[key]]} for key, name in names.items() if args.get(key)]
    tags = [{"Name": f"tag:{key}", "Values": [value]} for key, value in (args.get("tags") or {}).items()]
    explicit = [{"Name": entry["name"], "Values": list(entry["values"])} for entry in args.get("filters") or ()]
    return [*shorthand, *tags, *explicit]


def _subnets(filters: list[dict[str, Any]], clients: Clients) -> list[dict[str, Any]]:
    with convert_errors(f"looking for subnets in {clients.region}"):
        pages = clients.client("ec2").get_paginator("describe_subnets").paginate(Filters=filters)
        return [subnet for page in pages for subnet in page["Subnets"]]


def _single(matches: list[dict[str, Any]], what: str, hint: str) -> dict[str, Any]:
    if len(matches) != 1:
        message = f"expected one matching {what}, found {len(matches) or 'none'}"
        raise BadRequestError(message, code="NotExactlyOne", hint=hint)
    return matches[0]
