"""The undocumented parts of moto that the rehearsal cloud relies on: models, response classes and tables."""

import gzip
import inspect
import json
import pickle
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import boto3
import pytest
from moto import backend_index, backends, mock_aws
from moto.core.base_backend import BackendDict, BaseBackend
from moto.core.exceptions import JsonRESTError, ServiceException
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.request import Request
from moto.core.responses import ActionResult, BaseResponse
from moto.core.types import Base64EncodedString
from moto.core.utils import camelcase_to_underscores
from moto.ec2 import utils as ec2_utils
from moto.ec2.exceptions import DryRunClientError, EC2ClientError
from moto.ec2.models import ec2_backends, elastic_network_interfaces
from moto.ec2.models.amis import Ami
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.models.instances import StateReason
from moto.ec2.responses import EC2Response
from moto.ec2.utils import filter_iam_instance_profiles
from moto.efs.models import efs_backends
from moto.iam.models import iam_backends
from moto.s3.models import FakeKey, s3_backends
from moto.scheduler.models import scheduler_backends
from moto.scheduler.responses import EventBridgeSchedulerResponse
from moto.ssm.responses import SimpleSystemManagerResponse

REGION = "us-east-1"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Moto's EC2 backend, empty, and reachable by boto3 clients."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield ec2_backends[DEFAULT_ACCOUNT_ID][REGION]


def client(service: str) -> Any:
    return boto3.client(service, region_name=REGION)


@pytest.fixture
def image(cloud: Any) -> str:
    """Our own image: whether moto has built-in images depends on the import order."""
    disks = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8}}]
    made = client("ec2").register_image(Name="own", RootDeviceName="/dev/sda1", BlockDeviceMappings=disks)
    return str(made["ImageId"])


@pytest.fixture
def instance(cloud: Any, image: str) -> Any:
    made = client("ec2").run_instances(ImageId=image, MinCount=1, MaxCount=1, InstanceType="p3dn.24xlarge")
    return cloud.get_instance(made["Instances"][0]["InstanceId"])


# --- the backend registry


def test_backend_registry_lists_every_backend(instance: Any) -> None:
    registered = vars(BackendDict)["_instances"]
    found = {
        f"{one.service_name}@{region}@{account}": backend
        for one in registered
        for account, region, backend in one.iter_backends()
    }
    assert found[f"ec2@{REGION}@{DEFAULT_ACCOUNT_ID}"] is ec2_backends[DEFAULT_ACCOUNT_ID][REGION]
    assert all(isinstance(one, BaseBackend) for one in found.values())


def test_backend_can_be_replaced_and_the_registry_reset(cloud: Any) -> None:
    other = type(cloud)(REGION, DEFAULT_ACCOUNT_ID)
    ec2_backends[DEFAULT_ACCOUNT_ID][REGION] = other
    assert ec2_backends[DEFAULT_ACCOUNT_ID][REGION] is other
    assert (other.region_name, other.account_id) == (REGION, DEFAULT_ACCOUNT_ID)
    BackendDict.reset()
    assert list(ec2_backends.iter_backends()) == []


@pytest.mark.parametrize("service", ["ec2", "efs", "iam", "s3", "ssm", "sts", "kms", "scheduler"])
def test_service_backends_are_found_by_service_name(service: str) -> None:
    module = __import__(f"moto.{service}.models", fromlist=["models"])
    assert getattr(module, f"{service}_backends").service_name == service


def test_service_routes_are_found_by_url(cloud: Any) -> None:
    url = "https://iam.amazonaws.com/"
    (name,) = [name for name, pattern in backend_index.backend_url_patterns if pattern.match(url)]
    table = backends.get_backend(name)
    account = table[DEFAULT_ACCOUNT_ID]
    assert list(account["us-east-1" if "us-east-1" in account else "aws"].urls)


# --- response classes


def test_request_is_created_from_primitives() -> None:
    made = Request.from_primitives("POST", f"https://ec2.{REGION}.amazonaws.com/", {"X-A": "b"}, b"Action=X")
    assert (made.method, made.data, made.headers["X-A"]) == ("POST", b"Action=X", "b")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("_dispatch", ["self", "request", "full_url"]),
        ("_get_action", ["self"]),
        ("_enrich_response", ["headers", "body"]),
        ("call_action", ["self"]),
        ("serialized", ["self", "action_result"]),
    ],
)
def test_private_response_methods_have_the_expected_parameters(name: str, wanted: list[str]) -> None:
    found = list(inspect.signature(getattr(BaseResponse, name)).parameters)
    assert found[: len(wanted)] == wanted


def test_dispatch_calls_call_action_with_named_parameters(cloud: Any) -> None:
    seen: dict[str, Any] = {}

    class Spy(EC2Response):
        def call_action(self) -> Any:
            seen.update(action=self._get_action(), params=dict(self.params), region=self.region)
            seen["backend"] = self.ec2_backend
            status, headers, body = self.serialized(ActionResult({"Vpcs": [{"VpcId": "vpc-1"}]}))
            headers, body = self._enrich_response(headers, body)
            return status, headers, body

    body = b"Action=DescribeVpcs&Version=2016-11-15&MaxResults=5&Filter.1.Name=a&Filter.1.Value.1=b"
    url = f"https://ec2.{REGION}.amazonaws.com/"
    headers = {"Host": f"ec2.{REGION}.amazonaws.com", "Content-Type": "application/x-www-form-urlencoded"}
    status, _, answer = Spy()._dispatch(Request.from_primitives("POST", url, headers, body), url)
    assert (status, seen["action"], seen["region"]) == (200, "DescribeVpcs", REGION)
    assert seen["params"]["MaxResults"] == 5
    assert seen["params"]["Filters"] == [{"Name": "a", "Values": ["b"]}]
    assert seen["backend"] is cloud
    assert "<vpcId>vpc-1</vpcId>" in (answer if isinstance(answer, str) else answer.decode())


def test_error_is_serialized_with_its_code(cloud: Any) -> None:
    class Refusing(EC2Response):
        def call_action(self) -> Any:
            return self.serialized(ActionResult(EC2ClientError("Some.Code", "why")))

    url = f"https://ec2.{REGION}.amazonaws.com/"
    body = b"Action=DescribeVpcs&Version=2016-11-15"
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    status, _, answer = Refusing()._dispatch(Request.from_primitives("POST", url, headers, body), url)
    assert status == 400
    assert "<Code>Some.Code</Code>" in (answer if isinstance(answer, str) else answer.decode())
    assert issubclass(EC2ClientError, ServiceException)
    assert issubclass(DryRunClientError, EC2ClientError)


def test_ec2_actions_have_snake_case_response_methods() -> None:
    for action in ("RunInstances", "CreateFleet", "DescribeInstanceTypeOfferings", "CreateNatGateway"):
        assert callable(getattr(EC2Response, camelcase_to_underscores(action))), action


def test_subclassed_services_have_the_overridden_methods() -> None:
    for name in ("get_parameter", "get_parameters"):
        assert callable(getattr(SimpleSystemManagerResponse, name))
    for name in (
        "create_schedule_group",
        "delete_schedule_group",
        "list_tags_for_resource",
        "tag_resource",
        "create_schedule",
        "update_schedule",
    ):
        assert callable(getattr(EventBridgeSchedulerResponse, name))
    assert isinstance(inspect.getattr_static(SimpleSystemManagerResponse, "ssm_backend"), property)
    assert isinstance(inspect.getattr_static(EventBridgeSchedulerResponse, "scheduler_backend"), property)
    refused = JsonRESTError("Code", "why")
    assert "Code" in str(refused.description)


# --- EC2's models


def test_private_instance_state_and_reason_can_be_set(cloud: Any, instance: Any) -> None:
    instance._state.name, instance._state.code = "shutting-down", 32
    instance._reason = "User initiated (2026-11-21 05:00:00 GMT)"
    instance.state_reason = StateReason("Client.UserInitiatedShutdown: User initiated shutdown", "Client.X")
    (shown,) = client("ec2").describe_instances()["Reservations"][0]["Instances"]
    assert (shown["State"], shown["StateTransitionReason"]) == (
        {"Name": "shutting-down", "Code": 32},
        "User initiated (2026-11-21 05:00:00 GMT)",
    )
    assert shown["StateReason"]["Code"] == "Client.X"
    assert cloud.get_instance(instance.id).state == "shutting-down"


def test_instance_has_the_public_fields_we_use(instance: Any) -> None:
    names = (
        "instance_type", "image_id", "placement", "lifecycle", "instance_initiated_shutdown_behavior", "nics", "vpc_id",
        "private_ip", "disable_api_termination", "ec2_backend", "block_device_mapping",
    )  # fmt: skip
    assert [name for name in names if not hasattr(instance, name)] == []
    assert [device.volume_id for _, device in instance.get_block_device_mapping]
    primary = instance.nics[0]
    assert any(row.get("Primary") for row in primary.private_ip_addresses)
    assert primary.subnet.id
    instance.iam_instance_profile = {"Arn": "arn:aws:iam::1:instance-profile/x", "Id": "AIPA"}
    instance.spot_instance_request_id = "sir-1"


def test_terminating_an_instance_deletes_its_root_volume(cloud: Any, instance: Any) -> None:
    volume = next(device.volume_id for _, device in instance.get_block_device_mapping)
    assert volume in cloud.volumes
    instance.terminate()
    assert volume not in cloud.volumes


def test_nat_gateway_and_route_table_have_expected_private_fields(cloud: Any) -> None:
    ec2 = client("ec2")
    subnet = ec2.describe_subnets()["Subnets"][0]
    address = ec2.allocate_address(Domain="vpc")
    made = ec2.create_nat_gateway(SubnetId=subnet["SubnetId"], AllocationId=address["AllocationId"])["NatGateway"]
    gateway = cloud.nat_gateways[made["NatGatewayId"]]
    assert gateway._eni.id in cloud.enis
    assert any(one.eni is gateway._eni for one in cloud.addresses)
    table = ec2.create_route_table(VpcId=subnet["VpcId"])["RouteTable"]["RouteTableId"]
    joined = ec2.associate_route_table(RouteTableId=table, SubnetId=subnet["SubnetId"])["AssociationId"]
    assert cloud.route_tables[table]._associations == {joined: subnet["SubnetId"]}


def test_ec2_backend_has_the_attributes_and_methods_we_use(cloud: Any) -> None:
    names = (
        "addresses", "amis", "deleted_amis", "enis", "groups", "internet_gateways", "key_pairs", "launch_templates",
        "nat_gateways", "reservations", "route_tables", "subnets", "tags", "volumes", "vpc_end_points", "vpcs",
    )  # fmt: skip
    assert [name for name in names if not hasattr(cloud, name)] == []
    calls = (
        "all_instances", "get_instance", "get_subnet", "get_network_interface", "get_security_group_from_id",
        "address_by_allocation", "associate_address", "create_nat_gateway", "describe_availability_zones",
        "describe_instance_types", "describe_launch_templates", "get_all_network_interfaces", "get_default_subnets",
        "run_instances",
    )  # fmt: skip
    assert [name for name in calls if not callable(getattr(cloud, name))] == []


def test_image_constructor_accepts_the_parameters_we_use(cloud: Any, image: str) -> None:
    given = inspect.signature(Ami.__init__).parameters
    wanted = {"ec2_backend", "ami_id", "name", "owner_id", "public", "region_name", "root_device_name"}
    assert wanted - set(given) == set()
    assert cloud.amis[image].root_device_name == "/dev/sda1"


def test_instance_type_tables_have_the_ec2_response_format() -> None:
    described = INSTANCE_TYPES["p3dn.24xlarge"]
    assert (described["InstanceType"], described["VCpuInfo"]["DefaultVCpus"]) == ("p3dn.24xlarge", 96)
    assert described["GpuInfo"]["Gpus"][0]["MemoryInfo"]["SizeInMiB"] == 32768
    for kind in ("region", "availability-zone", "availability-zone-id"):
        assert {"InstanceType", "Location"} <= set(INSTANCE_TYPE_OFFERINGS[kind][REGION][0])


def test_moto_ships_the_instance_type_data() -> None:
    packed = files("moto.ec2").joinpath("resources/instance_types.json.gz").read_bytes()
    assert json.loads(gzip.decompress(packed))["p3dn.24xlarge"]["GpuInfo"]["Gpus"][0]["Count"] == 8


def test_instance_filter_table_can_be_extended(instance: Any) -> None:
    assert ec2_utils.filter_dict_attribute_mapping["instance-type"] == "instance_type"
    assert Base64EncodedString("cmF3").decode() == "raw"
    assert list(inspect.signature(filter_iam_instance_profiles).parameters)[:2] == ["account_id", "partition"]


def test_attachment_class_is_resolved_when_an_interface_is_attached(cloud: Any, instance: Any) -> None:
    """The rehearsal cloud replaces this class with its own, which has the network card."""
    made = vars(elastic_network_interfaces)["Attachment"]
    interface = client("ec2").describe_network_interfaces()["NetworkInterfaces"][0]
    assert isinstance(cloud.enis[interface["NetworkInterfaceId"]].attachment, made)


# --- other models


def test_s3_object_can_be_restored_without_its_original_content(cloud: Any) -> None:
    s3 = client("s3")
    s3.create_bucket(Bucket="bucket")
    s3.put_object(Bucket="bucket", Key="k", Body=b"content")
    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    ((_, versions),) = backend.buckets["bucket"].keys.iterlists()
    (key,) = versions
    assert isinstance(key, FakeKey)
    assert (key.value, key.contentsize) == (b"content", 7)
    assert {"_value_buffer", "lock"} <= set(vars(key))
    fields = {name: value for name, value in vars(key).items() if name not in ("_value_buffer", "lock")}
    bare = FakeKey.__new__(FakeKey)
    bare.__setstate__({**fields, "value": b"other"})
    assert bare.value == b"other"
    assert s3_backends.bucket_accounts["bucket"] == (backend.partition, DEFAULT_ACCOUNT_ID)
    assert backend.buckets["bucket"].multiparts == {}


def test_file_system_has_its_mount_targets_by_id(cloud: Any) -> None:
    efs = client("efs")
    made = efs.create_file_system(CreationToken="t")["FileSystemId"]
    subnet = client("ec2").describe_subnets()["Subnets"][0]
    efs.create_mount_target(FileSystemId=made, SubnetId=subnet["SubnetId"])
    system = efs_backends[DEFAULT_ACCOUNT_ID][REGION].file_systems_by_id[made]
    (target,) = system._mount_targets.values()
    assert target.availability_zone_name == subnet["AvailabilityZone"]


def test_roles_and_schedules_are_stored_by_name(cloud: Any) -> None:
    iam, scheduler = client("iam"), client("scheduler")
    iam.create_role(RoleName="r", AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": []}))
    (role,) = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].roles.values()
    assert (role.name, bool(role.assume_role_policy_document)) == ("r", True)
    scheduler.create_schedule_group(Name="g")
    scheduler.create_schedule(
        Name="s", GroupName="g", ScheduleExpression="at(2026-11-21T05:00:00)", FlexibleTimeWindow={"Mode": "OFF"},
        Target={"Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances", "RoleArn": role.arn},
    )  # fmt: skip
    backend = scheduler_backends[DEFAULT_ACCOUNT_ID][REGION]
    schedule = backend.schedule_groups["g"].schedules["s"]
    for name in ("action_after_completion", "state", "schedule_expression", "schedule_expression_timezone", "target"):
        assert hasattr(schedule, name), name
    assert backend.tagger.get_tag_dict_for_resource(backend.schedule_groups["g"].arn) == {}


def test_iam_backend_can_be_pickled(cloud: Any) -> None:
    client("iam").create_role(RoleName="r", AssumeRolePolicyDocument="{}")
    backend = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    assert list(pickle.loads(pickle.dumps(backend)).roles) == list(backend.roles)
