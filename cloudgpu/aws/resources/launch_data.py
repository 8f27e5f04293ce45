"""Convert the properties of a launch template to EC2's `LaunchTemplateData`."""

from collections.abc import Callable, Mapping
from typing import Any

from cloudgpu.aws.ec2.tagging import tag_specification
from cloudgpu.aws.resources.base import Properties

Convert = Callable[[Any], Any]
Table = Mapping[str, tuple[str, Convert]]


def _boolean(value: Any) -> bool:  # noqa: ANN401
    """Convert a boolean that the provider may have written as text."""
    return value if isinstance(value, bool) else str(value).lower() == "true"


def _same(value: Any) -> Any:  # noqa: ANN401
    return value


def _mapping(table: Table) -> Convert:
    """Return a converter for mappings. The table maps each Pulumi key to the AWS key and a converter for the value."""

    def convert(properties: Mapping[str, Any]) -> dict[str, Any]:
        present = {key: value for key, value in properties.items() if value is not None and value != ""}
        return {table[key][0]: table[key][1](value) for key, value in present.items()}

    return convert


def _each(convert: Convert) -> Convert:
    return lambda values: [convert(value) for value in values]


EBS: Table = {
    "deleteOnTermination": ("DeleteOnTermination", _boolean),
    "encrypted": ("Encrypted", _boolean),
    "iops": ("Iops", int),
    "kmsKeyId": ("KmsKeyId", _same),
    "snapshotId": ("SnapshotId", _same),
    "throughput": ("Throughput", int),
    "volumeSize": ("VolumeSize", int),
    "volumeType": ("VolumeType", _same),
}
DEVICE: Table = {
    "deviceName": ("DeviceName", _same),
    "virtualName": ("VirtualName", _same),
    "noDevice": ("NoDevice", _same),
    "ebs": ("Ebs", _mapping(EBS)),
}
INTERFACE: Table = {
    "associatePublicIpAddress": ("AssociatePublicIpAddress", _boolean),
    "deleteOnTermination": ("DeleteOnTermination", _boolean),
    "description": ("Description", _same),
    "deviceIndex": ("DeviceIndex", int),
    "interfaceType": ("InterfaceType", _same),
    "networkCardIndex": ("NetworkCardIndex", int),
    "networkInterfaceId": ("NetworkInterfaceId", _same),
    "privateIpAddress": ("PrivateIpAddress", _same),
    "securityGroups": ("Groups", list),
    "subnetId": ("SubnetId", _same),
}
METADATA: Table = {
    "httpEndpoint": ("HttpEndpoint", _same),
    "httpTokens": ("HttpTokens", _same),
    "httpPutResponseHopLimit": ("HttpPutResponseHopLimit", int),
    "httpProtocolIpv6": ("HttpProtocolIpv6", _same),
    "instanceMetadataTags": ("InstanceMetadataTags", _same),
}
PLACEMENT: Table = {
    "affinity": ("Affinity", _same),
    "availabilityZone": ("AvailabilityZone", _same),
    "groupName": ("GroupName", _same),
    "hostId": ("HostId", _same),
    "partitionNumber": ("PartitionNumber", int),
    "tenancy": ("Tenancy", _same),
}
PROFILE: Table = {"arn": ("Arn", _same), "name": ("Name", _same)}
TAG_SPECIFICATION = frozenset({"resourceType", "tags"})

MARKET: Table = {"marketType": ("MarketType", _same)}
RESERVATION_TARGET: Table = {
    "capacityReservationId": ("CapacityReservationId", _same),
    "capacityReservationResourceGroupArn": ("CapacityReservationResourceGroupArn", _same),
}
RESERVATION: Table = {
    "capacityReservationPreference": ("CapacityReservationPreference", _same),
    "capacityReservationTarget": ("CapacityReservationTarget", _mapping(RESERVATION_TARGET)),
}

DATA: Table = {
    "blockDeviceMappings": ("BlockDeviceMappings", _each(_mapping(DEVICE))),
    "capacityReservationSpecification": ("CapacityReservationSpecification", _mapping(RESERVATION)),
    "disableApiTermination": ("DisableApiTermination", _boolean),
    "ebsOptimized": ("EbsOptimized", _boolean),
    "iamInstanceProfile": ("IamInstanceProfile", _mapping(PROFILE)),
    "imageId": ("ImageId", _same),
    "instanceInitiatedShutdownBehavior": ("InstanceInitiatedShutdownBehavior", _same),
    "instanceMarketOptions": ("InstanceMarketOptions", _mapping(MARKET)),
    "instanceType": ("InstanceType", _same),
    "keyName": ("KeyName", _same),
    "metadataOptions": ("MetadataOptions", _mapping(METADATA)),
    "networkInterfaces": ("NetworkInterfaces", _each(_mapping(INTERFACE))),
    "placement": ("Placement", _mapping(PLACEMENT)),
    "tagSpecifications": (
        "TagSpecifications",
        _each(lambda specification_: tag_specification(specification_["resourceType"], specification_["tags"])),
    ),
    "userData": ("UserData", _same),
    "vpcSecurityGroupIds": ("SecurityGroupIds", list),
}

NESTED: Mapping[str, frozenset[str]] = {
    "blockDeviceMappings": frozenset(DEVICE),
    "blockDeviceMappings.ebs": frozenset(EBS),
    "capacityReservationSpecification": frozenset(RESERVATION),
    "capacityReservationSpecification.capacityReservationTarget": frozenset(RESERVATION_TARGET),
    "instanceMarketOptions": frozenset(MARKET),
    "iamInstanceProfile": frozenset(PROFILE),
    "metadataOptions": frozenset(METADATA),
    "networkInterfaces": frozenset(INTERFACE),
    "placement": frozenset(PLACEMENT),
    "tagSpecifications": TAG_SPECIFICATION,
}


def launch_template_data(inputs: Properties) -> dict[str, Any]:
    """Return the `LaunchTemplateData` of one version of the launch template."""
    return {name: convert(inputs[key]) for key, (name, convert) in DATA.items() if inputs.get(key) is not None}
