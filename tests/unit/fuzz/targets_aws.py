"""Fuzz targets for responses of AWS: price lists, consoles, listings, networks and tags."""

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from cloudgpu import bounds
from cloudgpu.aws import prices_and_quotas, s3, storage
from cloudgpu.aws.ec2 import billing_times, instances, machine_images, named_resources, ssh_access, subnets, tag_search
from cloudgpu.aws.resources import fleet
from cloudgpu.aws.session import credentials
from cloudgpu.backends import sweep
from cloudgpu.catalog.snapshot import TypeFacts
from cloudgpu.errors import CloudGpuError
from cloudgpu.plan.capacity import Reservation
from cloudgpu.plan.named_resources import MachineImageSeen
from cloudgpu.plan.network_access import NO_REQUEST, NetworkRequest
from cloudgpu.plan.subnets import RegionNetwork
from tests.unit.fuzz.conformity import conforms
from tests.unit.fuzz.hostile import spoiled, spoiled_text, values, words
from tests.unit.fuzz.shapes import NOW, FakeClients
from tests.unit.fuzz.target import Target


def _clients(answer: Any) -> Any:
    return FakeClients(answer)


_PRODUCT = {
    "product": {"attributes": {"instanceType": "g5.xlarge"}},
    "terms": {"OnDemand": {"a": {"priceDimensions": {"b": {"unit": "Hrs", "pricePerUnit": {"USD": "1.0060000000"}}}}}},
}
_INSTANCE = {
    "InstanceId": "i-0123456789abcdef0",
    "InstanceType": "g5.xlarge",
    "Placement": {"AvailabilityZone": "us-east-1a", "GroupName": ""},
    "State": {"Name": "running"},
    "LaunchTime": NOW.isoformat(),
    "Tags": [{"Key": "cloudgpu:cluster", "Value": "lab"}, {"Key": "aws:ec2:fleet-id", "Value": "fleet-1"}],
    "NetworkInterfaces": [{"InterfaceType": "efa"}],
    "CpuOptions": {"CoreCount": 2, "ThreadsPerCore": 2},
    "StateReason": {"Code": "a", "Message": "b"},
}
_TAGGED = {
    "Reservations": [{"Instances": [_INSTANCE]}],
    "NatGateways": [{"NatGatewayId": "nat-1", "State": "available", "Tags": []}],
    "Addresses": [{"AllocationId": "eipalloc-1"}],
    "NetworkInterfaces": [{"NetworkInterfaceId": "eni-1", "Status": "in-use", "TagSet": []}],
    "Volumes": [
        {
            "VolumeId": "vol-1",
            "State": "in-use",
            "Size": 100,
            "VolumeType": "gp3",
            "CreateTime": NOW.isoformat(),
            "AvailabilityZone": "us-east-1a",
            "Tags": [{"Key": "cloudgpu:storage", "Value": "d"}],
            "Attachments": [],
        }
    ],
    "LaunchTemplates": [{"LaunchTemplateId": "lt-1", "LaunchTemplateName": "a"}],
    "PlacementGroups": [{"GroupName": "a", "State": "available"}],
    "SecurityGroups": [
        {
            "GroupId": "sg-1",
            "GroupName": "a",
            "IpPermissions": [{"UserIdGroupPairs": [{"GroupId": "sg-2"}]}],
            "Tags": [{"Key": "cloudgpu:storage", "Value": "d"}],
        }
    ],
    "KeyPairs": [{"KeyName": "a"}],
    "VpcEndpoints": [{"VpcEndpointId": "vpce-1", "State": "available"}],
    "RouteTables": [{"RouteTableId": "rtb-1"}],
    "Subnets": [{"SubnetId": "subnet-1", "State": "available", "AvailabilityZone": "us-east-1a"}],
    "InternetGateways": [{"InternetGatewayId": "igw-1"}],
    "Vpcs": [{"VpcId": "vpc-1", "State": "available"}],
    "ScheduleGroups": [],
    "Roles": [],
    "InstanceProfiles": [],
    "Fleets": [{"FleetState": "active"}],
}
_ENDED = {
    "Reservations": [
        {
            "Instances": [
                {
                    **_INSTANCE,
                    "State": {"Name": "terminated"},
                    "StateTransitionReason": "User initiated (2026-11-21 05:00:00 GMT)",
                }
            ]
        }
    ],
    "NatGateways": [{"NatGatewayId": "nat-1", "State": "deleted", "CreateTime": NOW.isoformat()}],
    "Addresses": [{"AllocationId": "eipalloc-1"}],
}
_STORED = {
    **_TAGGED,
    "FileSystems": [
        {
            "FileSystemId": "fs-1",
            "FileSystemType": "LUSTRE",
            "SizeInBytes": {"Value": 6144},
            "LifeCycleState": "available",
            "Lifecycle": "AVAILABLE",
            "CreationTime": NOW.isoformat(),
            "StorageCapacity": 1200,
            "SubnetIds": ["subnet-1"],
            "LustreConfiguration": {"DeploymentType": "SCRATCH_2"},
            "Tags": [{"Key": "cloudgpu:storage", "Value": "d"}],
        }
    ],
    "MountTargets": [{"MountTargetId": "fsmt-1"}],
    "Associations": [{"AssociationId": "dra-1", "Lifecycle": "AVAILABLE", "Tags": []}],
    "Buckets": [{"Name": "cloudgpu-d", "CreationDate": NOW.isoformat()}],
    "TagSet": [{"Key": "cloudgpu:storage", "Value": "d"}],
    "Contents": [{"Key": "a", "Size": 5, "ETag": '"0"'}],
}
_IMAGES = {
    "Images": [
        {
            "ImageId": "ami-1",
            "State": "available",
            "CreationDate": "2026-11-22T12:00:00.000Z",
            "BlockDeviceMappings": [{"Ebs": {"SnapshotId": "snap-1", "VolumeSize": 100}}],
            "Tags": [{"Key": "cloudgpu:image", "Value": "base"}],
        }
    ],
    "Snapshots": [{"SnapshotId": "snap-2", "StartTime": NOW.isoformat(), "VolumeSize": 8, "Tags": []}],
}
_TYPES = {
    "InstanceTypes": [
        {
            "InstanceType": "g5.xlarge",
            "GpuInfo": {
                "Gpus": [{"Name": "A10G", "Manufacturer": "NVIDIA", "Count": 1, "MemoryInfo": {"SizeInMiB": 22888}}]
            },
            "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
            "VCpuInfo": {"DefaultVCpus": 4},
            "MemoryInfo": {"SizeInMiB": 16384},
            "NetworkInfo": {
                "EfaInfo": {"MaximumEfaInterfaces": 1},
                "MaximumNetworkCards": 1,
                "NetworkPerformance": "10 Gigabit",
            },
            "SupportedUsageClasses": ["on-demand"],
            "InstanceStorageInfo": {"Disks": [{"Count": 1, "SizeInGB": 250}]},
            "CurrentGeneration": True,
        }
    ],
}
_LIMITS = {"Quotas": [{"QuotaCode": "L-417A185B", "QuotaName": "Running On-Demand P instances", "Value": 192.0}]}
_ACCOUNT = {"AccountAttributes": [{"AttributeValues": [{"AttributeValue": "5"}]}], "Addresses": []}
_ROOT_DISK = {
    "Images": [
        {
            "RootDeviceName": "/dev/sda1",
            "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8, "SnapshotId": "snap-1"}}],
        }
    ]
}
_RESERVED = {
    "CapacityReservations": [
        {
            "CapacityReservationId": "cr-1",
            "AvailabilityZone": "us-east-1a",
            "InstanceType": "p5.48xlarge",
            "State": "active",
            "AvailableInstanceCount": 2,
            "StartDate": NOW.isoformat(),
        }
    ]
}
_BLOB = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + b"k" * 32).decode()
_CONSOLE = (
    "[    5.1] cloud-init[1]: -----BEGIN SSH HOST KEY FINGERPRINTS-----\r\n"
    f"256 SHA256:{'A' * 43} root@ip (ED25519)\r\n-----END SSH HOST KEY FINGERPRINTS-----\r\n"
    f"-----BEGIN SSH HOST KEY KEYS-----\nssh-ed25519 {_BLOB} root@ip\n-----END SSH HOST KEY KEYS-----\n"
)
_ERRORS = [
    {
        "ErrorCode": "InsufficientInstanceCapacity",
        "ErrorMessage": "none",
        "Lifecycle": "spot",
        "LaunchTemplateAndOverrides": {"Overrides": {"AvailabilityZone": "us-east-1a"}},
    }
]


def _on_demand(answer: Any) -> None:
    if isinstance(answer, dict) and isinstance(answer.get("PriceList"), list):
        answer["PriceList"] = [one if isinstance(one, str) else json.dumps(one) for one in answer["PriceList"]]
    found = prices_and_quotas.on_demand(_clients(answer))
    conforms(dict[str, Decimal], found)
    assert all(usd > 0 for usd in found.values())


def _spot(answer: Any) -> None:
    found = prices_and_quotas.spot(_clients(answer), ["g5.xlarge"], NOW)
    conforms(dict[str, tuple[Decimal, Decimal]], found)
    assert all(0 < low <= high for low, high in found.values())


def _types(answer: Any) -> None:
    conforms(dict[str, TypeFacts], instances.describe_gpu_types(_clients(answer)))


def _limits(answer: Any) -> None:
    found = prices_and_quotas.vcpu_limits(_clients(answer))
    conforms(dict[str, int], found)
    assert all(vcpus >= 0 for vcpus in found.values())


def _running(answer: Any) -> None:
    found = prices_and_quotas.vcpus_in_use(_clients(answer), lambda _: 4)
    assert all(vcpus is None or vcpus >= 0 for vcpus in found.values())


def _offers(answer: Any) -> None:
    conforms(dict[str, tuple[str, ...]], instances.gpu_type_zones(_clients(answer)))


def _addresses(answer: Any) -> None:
    conforms(dict[str, int], instances.free_addresses(lambda _: _clients(answer), ["us-east-1"]))


def _instances(answer: Any) -> None:
    for one in instances.find_instances(_clients(answer), {"instance-id": ["i-1"]}):
        conforms(instances.Instance, one)


def _tagged(answer: Any) -> None:
    clients = _clients(answer)
    found = [*tag_search.search_region(clients).complete(), *tag_search.search_iam(clients).complete()]
    for one in found:
        conforms(type(one), one)
        assert isinstance(one.label, str)


def _stored(answer: Any) -> None:
    for one in storage.stored(_clients(answer)):
        conforms(storage.TaggedStorage, one)


def _lifetimes(answer: Any) -> None:
    conforms(Mapping[str, billing_times.Lifetime], billing_times.instance_lifetimes(_clients(answer), ["i-1"]))
    conforms(tuple[billing_times.Lifetime, ...], billing_times.network_resource_lifetimes(_clients(answer), "token"))


def _network(answer: Any) -> None:
    for request in (NO_REQUEST, NetworkRequest(subnet_id="subnet-1", security_group_id="sg-1")):
        found = subnets.region_network(_clients(answer), request)
        conforms(RegionNetwork, found)
        for subnet in found.subnets:
            conforms(int, subnet.free)
            assert subnet.free >= 0


def _own_images(answer: Any) -> None:
    clients = _clients(answer)
    found = machine_images.find_images(clients)
    for one in [*found, *machine_images.find_orphaned_snapshots(clients, "", found)]:
        conforms(machine_images.OwnImage, one)


def _reservation(answer: Any) -> None:
    found = named_resources.find_reservation(lambda _: _clients(answer), "cr-1", ["us-east-1"])
    assert found is None or conforms(Reservation, found)


def _machine_image(answer: Any) -> None:
    for image in machine_images.resolve_image_ids(lambda _: _clients(answer), [("/p", "us-east-1")]).values():
        assert isinstance(image, str)


def _root_disk(answer: Any) -> None:
    for seen in machine_images.describe_images(lambda _: _clients(answer), [("ami-1", "us-east-1")]).values():
        conforms(MachineImageSeen, seen)
        assert 0 <= seen.root_gib <= bounds.MAX_VOLUME_GIB


def _console(answer: Any) -> None:
    for one in ssh_access.read_console(_clients(answer), "i-1").fingerprints:
        assert one.startswith("SHA256:")
        assert len(one) == 50


def _login(answer: Any) -> None:
    user, password = credentials.ecr_login(_clients(answer).client("ecr"), "us-east-1")
    assert isinstance(user, str)
    assert password


def _bucket(answer: Any) -> None:
    size = s3.bucket_size(_clients(answer), "b")
    assert size is None or size >= 0
    conforms(dict[str, str], s3.bucket_tags(_clients(answer), "b") or {})


def _listing(answer: Any) -> None:
    for one in s3.list_objects(_clients(answer), "s3://b/a/"):
        conforms(type(one), one)
        assert one.size >= 0
    named_resources.check_dataset(_clients(answer), "s3://b/a/")


def _address(text: str) -> None:
    found = s3.S3Location.parse(text)
    assert found.bucket


def _shortfall(answer: Any) -> None:
    err = fleet.shortfall_error(_clients(answer), "fleet-1", got=0, wanted=2)
    assert isinstance(err, CloudGpuError)
    raise err


def _expiry_tag(text: str) -> None:
    found = sweep._utc({"cloudgpu:expires-at": text})
    assert found is None or conforms(datetime, found)


_VPC = {
    "Vpcs": [{"VpcId": "vpc-1"}],
    "SecurityGroups": [{"VpcId": "vpc-1"}],
    "Subnets": [
        {
            "SubnetId": "subnet-1",
            "VpcId": "vpc-1",
            "AvailabilityZone": "us-east-1a",
            "CidrBlock": "10.0.0.0/24",
            "AvailableIpAddressCount": 250,
            "State": "available",
            "BlockPublicAccessStates": {"InternetGatewayBlockMode": "off"},
        }
    ],
    "RouteTables": [
        {
            "Associations": [{"Main": True}, {"SubnetId": "subnet-1"}],
            "Routes": [{"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1", "State": "active"}],
        }
    ],
    "NetworkAcls": [
        {
            "Associations": [{"SubnetId": "subnet-1"}],
            "Entries": [
                {
                    "RuleNumber": 100,
                    "RuleAction": "allow",
                    "Egress": False,
                    "CidrBlock": "0.0.0.0/0",
                    "Protocol": "6",
                    "PortRange": {"From": 22, "To": 22},
                }
            ],
        }
    ],
}

TARGETS = (
    Target("price list", values({"PriceList": [_PRODUCT, json.dumps(_PRODUCT)]}), _on_demand),
    Target("spot prices", values({"SpotPriceHistory": [{"InstanceType": "g5.xlarge", "SpotPrice": "0.5012"}]}), _spot),
    Target("instance types", values(_TYPES), _types),
    Target("quota limits", values(_LIMITS), _limits),
    Target("running instances", values(_TAGGED), _running),
    Target(
        "instance offerings",
        values({"InstanceTypeOfferings": [{"InstanceType": "g5.xlarge", "Location": "us-east-1a"}]}),
        _offers,
    ),
    Target("account attributes", values(_ACCOUNT), _addresses),
    Target("instances", values({"Reservations": _TAGGED["Reservations"]}), _instances),
    Target("tagged resources", values(_TAGGED), _tagged),
    Target("stored resources", values(_STORED), _stored),
    Target("lifetimes", values(_ENDED), _lifetimes),
    Target("VPC and subnets", values(_VPC), _network),
    Target("own images", values(_IMAGES), _own_images),
    Target("capacity reservation", values(_RESERVED), _reservation),
    Target("image parameter", values({"Parameter": {"Value": "ami-1"}}), _machine_image),
    Target("root disk of an image", values(_ROOT_DISK), _root_disk),
    Target(
        "console answer",
        values({"Output": _CONSOLE}, {"Output": base64.b64encode(_CONSOLE.encode()).decode()}),
        _console,
    ),
    Target("console text", spoiled_text(_CONSOLE), lambda text: _console({"Output": text})),
    Target(
        "registry login",
        st.one_of(
            values({"authorizationData": [{"authorizationToken": base64.b64encode(b"AWS:secret").decode()}]}),
            spoiled(base64.b64encode(b"AWS:secret")).map(
                lambda data: {"authorizationData": [{"authorizationToken": data.decode("latin-1")}]}
            ),
        ),
        _login,
    ),
    Target("bucket listing", values(_STORED), _bucket),
    Target("object listing", values(_STORED), _listing),
    Target("s3 address", words("s3://bucket/prefix/"), _address),
    Target(
        "fleet description",
        values({"Fleets": [{"Errors": _ERRORS, "Instances": [{"InstanceIds": ["i-1"]}]}]}),
        _shortfall,
    ),
    Target("expiry tag", words("2026-11-22T12:00:00Z"), _expiry_tag),
)
