"""Conditions of the simulated AWS, such as throttling and clock skew, as a boto3 client sees them."""

import pytest
from botocore.exceptions import ClientError

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


def code_of(work, *args, **kwargs) -> str:
    with pytest.raises(ClientError) as err:
        work(*args, **kwargs)
    return str(err.value.response["Error"]["Code"])


@pytest.fixture
def under(module_rig):
    """Return a function that sets conditions; they are cleared after the test."""
    yield lambda **conditions: client.put_script(module_rig.cloud, {"names": ["x"], "cloud": conditions})
    client.put_script(module_rig.cloud, {})


def launch(rig, **more) -> str:
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "p3dn.24xlarge", **more}
    return str(rig.ec2.run_instances(**run)["Instances"][0]["InstanceId"])


def test_new_resource_ids_are_not_found_immediately(module_rig, under):
    under(unseen_calls=2)
    ec2 = module_rig.ec2
    group = ec2.create_security_group(GroupName="late", Description="x")["GroupId"]
    assert code_of(ec2.describe_security_groups, GroupIds=[group]) == "InvalidGroup.NotFound"
    everywhere = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    refused = code_of(ec2.authorize_security_group_ingress, GroupId=group, IpPermissions=everywhere)
    assert refused == "InvalidGroup.NotFound"
    ec2.describe_security_groups(GroupIds=[group])
    instance = launch(module_rig)
    assert code_of(ec2.create_tags, Resources=[instance], Tags=[{"Key": "a", "Value": "b"}]) == (
        "InvalidInstanceID.NotFound"
    )
    states = {"Name": "instance-state-name", "Values": ["pending", "running"]}

    def listed() -> bool:
        rows = ec2.describe_instances(Filters=[states])["Reservations"]
        return instance in {one["InstanceId"] for row in rows for one in row["Instances"]}

    assert [listed(), listed()] == [False, True]
    ec2.terminate_instances(InstanceIds=[instance])


def test_new_instance_profile_is_unknown_to_first_launches(module_rig, under):
    iam = module_rig.aws("iam")
    iam.create_instance_profile(InstanceProfileName="before")
    under(profile_calls=1)
    iam.create_instance_profile(InstanceProfileName="after")
    launch(module_rig, IamInstanceProfile={"Name": "before"})
    with pytest.raises(ClientError, match="Invalid IAM Instance Profile") as err:
        launch(module_rig, IamInstanceProfile={"Name": "after"})
    assert err.value.response["Error"]["Code"] == "InvalidParameterValue"
    launch(module_rig, IamInstanceProfile={"Name": "after"})


def test_termination_takes_several_describe_calls(module_rig, under):
    under(terminate_looks=3)
    instance = launch(module_rig)
    module_rig.ec2.terminate_instances(InstanceIds=[instance])
    looks = [module_rig.states(instance) for _ in range(3)]
    assert looks == [{"shutting-down"}] * 3
    module_rig.until(lambda: module_rig.states(instance) == {"terminated"})


def test_too_many_calls_are_throttled_with_503(module_rig, under):
    under(calls_per_s=0.5, burst=2)
    for _ in range(2):
        module_rig.ec2.describe_vpcs()
    with pytest.raises(ClientError) as err:
        module_rig.ec2.describe_vpcs()
    assert err.value.response["Error"]["Code"] == "RequestLimitExceeded"
    assert err.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
    module_rig.aws("ec2", "us-west-2").describe_vpcs()
    module_rig.aws("iam").list_roles()


def test_launch_fails_when_subnet_runs_out_of_addresses(module_rig, under):
    under(free_addresses={"us-east-1c": 1})
    run = {"ImageId": module_rig.ami(), "InstanceType": "p3dn.24xlarge", "SubnetId": module_rig.subnet()}
    refused = code_of(module_rig.ec2.run_instances, MinCount=2, MaxCount=2, **run)
    assert refused == "InsufficientFreeAddressesInSubnet"
    assert len(module_rig.ec2.run_instances(MinCount=1, MaxCount=2, **run)["Instances"]) == 1
    under()
    tiny = module_rig.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = module_rig.ec2.create_subnet(VpcId=tiny, CidrBlock="10.9.0.0/28", AvailabilityZone="us-east-1c")
    run["SubnetId"] = subnet["Subnet"]["SubnetId"]
    refused = code_of(module_rig.ec2.run_instances, MinCount=12, MaxCount=12, **run)
    assert refused == "InsufficientFreeAddressesInSubnet", "AWS keeps five of sixteen"
    assert len(module_rig.ec2.run_instances(MinCount=11, MaxCount=11, **run)["Instances"]) == 11


def test_retired_type_is_neither_offered_nor_launched(module_rig, under):
    under(retired=["p3dn.*"])
    assert code_of(module_rig.ec2.describe_instance_types, InstanceTypes=["p3dn.24xlarge"]) == "InvalidInstanceType"
    named = [{"Name": "instance-type", "Values": ["p3dn.24xlarge"]}]
    offered = module_rig.ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=named)
    assert offered["InstanceTypeOfferings"] == []
    with pytest.raises(ClientError, match="InvalidInstanceType"):
        launch(module_rig)
    under()
    launch(module_rig)


def test_console_output_can_be_late_or_stay_empty(module_rig, under):
    instance = launch(module_rig)
    module_rig.until(lambda: module_rig.states(instance) == {"running"})
    under(console_calls=2)

    def shown() -> str:
        return str(module_rig.ec2.get_console_output(InstanceId=instance, Latest=True)["Output"])

    assert [shown(), shown()] == ["", ""]
    assert shown().startswith(f"console of {instance}\r\n")
    under(console_empty=True)
    assert [shown(), shown()] == ["", ""]


def test_fleet_can_launch_fewer_instances_than_its_minimum(rig, fleet):
    client.put_script(rig.cloud, {"cloud": {"fleet_short_by": 1}})
    made = rig.ec2.create_fleet(**fleet(3, [rig.subnet()]))
    assert len(made["Instances"][0]["InstanceIds"]) == 2


@pytest.mark.parametrize(
    ("service", "ask", "code"),
    [
        ("ec2", lambda it: it.describe_vpcs(), "RequestExpired"),
        ("sts", lambda it: it.get_caller_identity(), "SignatureDoesNotMatch"),
        ("s3", lambda it: it.list_buckets(), "RequestTimeTooSkewed"),
    ],
)
def test_clock_skew_error_code_depends_on_the_service(module_rig, under, service, ask, code):
    under(clock_skew_s=-1200)
    assert code_of(ask, module_rig.aws(service)) == code


def test_invalid_script_is_rejected_and_changes_nothing(module_rig, under):
    under(terminate_looks=1)
    for wrong in ({"cloud": {"fog": 1}}, {"nodes": [{"do": "explode"}]}, {"rules": {}}, {"capacity": []}):
        with pytest.raises(RehearsalError, match="rejected the script call"):
            client.put_script(module_rig.cloud, wrong)
    now = client.script(module_rig.cloud)
    assert (now["cloud"], now["names"]) == ({"terminate_looks": 1}, ["x"])


def test_spot_interruption_terminates_only_spot_instances_after_notice(rig):
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
    taken, kept = launch(rig, **spot), launch(rig)
    rig.until(lambda: rig.states(taken, kept) == {"running"})
    client.put_script(rig.cloud, {"nodes": [{"do": "spot-notice", "seconds": 120}]})
    client.advance(rig.cloud, 119)
    assert rig.states(taken) == {"running"}
    client.advance(rig.cloud, 2)
    rig.until(lambda: rig.states(taken) == {"terminated"})
    assert rig.instances(taken)[0]["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    assert rig.states(kept) == {"running"}


def test_failed_boot_terminates_instance_with_internal_error(rig):
    client.put_script(rig.cloud, {"nodes": [{"do": "boot-fails", "count": 1}]})
    first = launch(rig)
    rig.until(lambda: rig.states(first) == {"terminated"})
    assert rig.instances(first)[0]["StateReason"]["Code"] == "Server.InternalError"
    second = launch(rig)
    rig.until(lambda: rig.states(second) == {"running"})
