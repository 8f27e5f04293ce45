"""What recordings of AWS show beside single errors: defaults of new resources, accepted values and the order of checks.

LocalStack's tests marked as validated ran against AWS. Sources are given at each test.
"""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.rehearsal.fidelity import situations
from tests.rehearsal.fidelity.situations import Situation

pytestmark = pytest.mark.rehearsal


def error_of(call: Any, **request: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**request)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"].get("Message", "")


# localstack/localstack@8b9a79f0 tests/aws/services/s3/test_s3_api.snapshot.json:
# test_crud_public_access_block and test_s3_default_bucket_encryption


def test_new_bucket_blocks_public_access_and_is_encrypted(situation: Situation) -> None:
    s3, name = situation.client("s3"), situations.bucket(situation)["bucket"]
    block = s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
    assert block == {
        "BlockPublicAcls": True,
        "BlockPublicPolicy": True,
        "IgnorePublicAcls": True,
        "RestrictPublicBuckets": True,
    }
    default = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": False}
    assert s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"] == [default]


def test_deleted_bucket_encryption_returns_to_the_default(situation: Situation) -> None:
    s3, name = situation.client("s3"), situations.bucket(situation)["bucket"]
    kms = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}
    s3.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": [kms]})
    s3.delete_bucket_encryption(Bucket=name)
    (rule,) = s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}


# the same file: test_create_bucket_with_tags_us_east_1_idempotency


def test_bucket_of_us_east_1_created_again_without_tags_keeps_its_settings(situation: Situation) -> None:
    s3, name = situation.client("s3"), situation.name("cloudgpu-again")
    tags = [{"Key": "tag1", "Value": "value1"}]
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"Tags": tags})
    s3.delete_public_access_block(Bucket=name)
    s3.create_bucket(Bucket=name)
    assert s3.get_bucket_tagging(Bucket=name)["TagSet"] == tags
    assert error_of(s3.get_public_access_block, Bucket=name)[0] == "NoSuchPublicAccessBlockConfiguration"


# localstack/localstack@8b9a79f0 tests/aws/services/scheduler/test_scheduler.py


@pytest.mark.parametrize(
    "expression",
    [
        "cron(0-15/1 8-8 ? * 2,3,4,5,6,7 *)",
        "cron(30-30 13-13 ? * 2,4,6 *)",
        "cron(1-31/30 1-1 ? * 1,7 *)",
        "cron(0 18 ? * MON-FRI *)",
        "cron(*/15 * * * ? *)",
        "cron(0-59/10 0-23/2 ? * * *)",
        "rate(10 minutes)",
        "at(2100-12-31T23:59:59)",
    ],
)
def test_scheduler_accepts_valid_expression(situation: Situation, expression: str) -> None:
    name = situation.name("schedule")
    statement = {"Effect": "Allow", "Principal": {"Service": "scheduler.amazonaws.com"}, "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    role = situation.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    scheduler = situation.client("scheduler")
    scheduler.create_schedule(
        Name=name,
        ScheduleExpression=expression,
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={"Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances", "RoleArn": role},
    )
    assert scheduler.get_schedule(Name=name)["ScheduleExpression"] == expression


# The order of checks. EC2: localstack/localstack@8b9a79f0 tests/aws/services/ec2/test_ec2.py,
# test_raise_create_volume_without_size, whose client is in another region than the zone. Scheduler: test_scheduler.py,
# whose invalid expressions come with a role that does not exist.


def test_size_of_a_volume_is_checked_before_its_zone_and_snapshot(situation: Situation) -> None:
    ec2 = situation.client("ec2")
    assert error_of(ec2.create_volume, AvailabilityZone="eu-central-1a")[0] == "MissingParameter"
    request = {"Size": 65537, "VolumeType": "gp3", "SnapshotId": "snap-0123456789abcdef0"}
    assert error_of(ec2.create_volume, AvailabilityZone="eu-central-1a", **request)[0] == "InvalidParameterValue"


def test_expression_of_a_schedule_is_checked_before_its_group_and_role(situation: Situation) -> None:
    request: dict[str, Any] = {
        "Name": "wrong",
        "GroupName": "no-such-group",
        "ScheduleExpression": "at(2021-12-31)",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "Target": {"Arn": "arn:aws:lambda:us-east-1:1:function:f", "RoleArn": "arn:aws:iam::123456789012:role/none"},
    }
    scheduler = situation.client("scheduler")
    assert error_of(scheduler.create_schedule, **request)[1] == "Invalid Schedule Expression at(2021-12-31)."
    valid = {**request, "ScheduleExpression": "at(2100-12-31T00:00:00)"}
    assert error_of(scheduler.create_schedule, **valid)[0] == "ResourceNotFoundException"
    assert "execution role" in error_of(scheduler.create_schedule, **{**valid, "GroupName": "default"})[1]


def test_security_group_gets_no_rule_when_one_of_several_exists(situation: Situation) -> None:
    ec2, group = situation.client("ec2"), situations.group_open_for_ssh(situation)["group"]

    def permission(port: int) -> dict[str, Any]:
        ranges = [{"CidrIp": "0.0.0.0/0"}]
        return {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "IpRanges": ranges}

    request = {"GroupId": group, "IpPermissions": [permission(80), permission(22)]}
    code, message = error_of(ec2.authorize_security_group_ingress, **request)
    assert code == "InvalidPermission.Duplicate"
    assert 'peer: 0.0.0.0/0, TCP, from port: 22, to port: 22, ALLOW"' in message
    (described,) = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    assert [rule["FromPort"] for rule in described["IpPermissions"]] == [22]
