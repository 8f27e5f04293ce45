"""A "not found" response for a resource created moments ago is retried."""

from types import SimpleNamespace

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ClientError

from cloudgpu.aws.session.errors import UNREACHABLE, convert_errors
from cloudgpu.aws.session.eventual_consistency import YOUNG_S, NewResources
from cloudgpu.errors import CloudError

SG = "sg-0123456789abcdef0"
GONE = "<Response><Errors><Error><Code>InvalidGroup.NotFound</Code><Message>x</Message></Error></Errors></Response>"
MADE = f"<CreateSecurityGroupResponse><groupId>{SG}</groupId></CreateSecurityGroupResponse>"
SEEN = "<DescribeSecurityGroupsResponse><securityGroupInfo/></DescribeSecurityGroupsResponse>"
DELETED = "<DeleteSecurityGroupResponse><return>true</return></DeleteSecurityGroupResponse>"


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


@pytest.fixture
def ec2(monkeypatch, clock):
    """A client with queued responses, whose pauses advance the clock."""
    made = boto3.client(
        "ec2", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b",
        config=Config(retries={"total_max_attempts": 1}),
    )  # fmt: skip
    answers: list[str] = []

    def send(request, **_):
        text = answers.pop(0)
        return AWSResponse(request.url, 400 if "<Errors>" in text else 200, {}, Raw(text.encode()))

    def sleep(seconds):
        clock.now += seconds

    monkeypatch.setattr("botocore.endpoint.time.sleep", sleep)
    made.meta.events.register_first("before-send.ec2", send)
    made.new = NewResources(lambda: clock.now)
    made.new.watch(made)
    made.answers = answers
    return made


class Raw:
    def __init__(self, content):
        self._content = content

    def stream(self, **_):
        yield self._content


def test_not_found_is_retried_for_new_resource(ec2, clock):
    ec2.answers += [MADE, GONE, GONE, SEEN]
    made = ec2.create_security_group(GroupName="g", Description="d")
    assert ec2.describe_security_groups(GroupIds=[made["GroupId"]])["SecurityGroups"] == []
    assert (ec2.answers, clock.now) == ([], 0.75)


def test_not_found_is_accepted_after_consistency_window(ec2, clock):
    ec2.answers += [MADE, *[GONE] * 99]
    ec2.create_security_group(GroupName="g", Description="d")
    with pytest.raises(ClientError, match="NotFound"):
        ec2.describe_security_groups(GroupIds=[SG])
    assert YOUNG_S <= clock.now < YOUNG_S + 4


@pytest.mark.parametrize("before", [[], [MADE, DELETED]], ids=["somebody else's", "deleted from here"])
def test_not_found_of_other_or_deleted_resource_is_immediate(ec2, clock, before):
    ec2.answers += [*before, GONE]
    if before:
        ec2.create_security_group(GroupName="g", Description="d")
        ec2.delete_security_group(GroupId=SG)
    with pytest.raises(ClientError, match="NotFound"):
        ec2.describe_security_groups(GroupIds=[SG])
    assert (ec2.answers, clock.now) == ([], 0.0)


def test_unreadable_response_is_reported_as_unreachable(ec2):
    ec2.answers += ["<html>Bad Gateway"]
    with pytest.raises(CloudError, match="looking: unreadable response") as err, convert_errors("looking"):
        ec2.describe_vpcs()
    assert err.value.code == UNREACHABLE


def test_other_errors_on_new_resource_are_not_retried(ec2, clock):
    ec2.answers += [MADE, GONE.replace("InvalidGroup.NotFound", "DependencyViolation")]
    ec2.create_security_group(GroupName="g", Description="d")
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_security_group(GroupId=SG)
    assert clock.now == 0.0


KEY_MADE = (
    "<ImportKeyPairResponse><keyName>lab</keyName><keyPairId>key-0123456789abcdef0</keyPairId></ImportKeyPairResponse>"
)
KEY_DELETED = "<DeleteKeyPairResponse><return>true</return></DeleteKeyPairResponse>"


def test_error_text_with_a_name_or_id_created_here_is_recent_for_two_minutes(ec2, clock):
    ec2.answers += [MADE, KEY_MADE]
    ec2.create_security_group(GroupName="g", Description="d")
    ec2.import_key_pair(KeyName="lab", PublicKeyMaterial=b"x")
    assert ec2.new.created_recently(f"The security group '{SG}' does not exist")
    assert ec2.new.created_recently("The key pair 'lab' does not exist")
    assert not ec2.new.created_recently("The key pair 'lab-2' does not exist")
    assert not ec2.new.created_recently("The key pair 'my-lab' does not exist")
    clock.now = 120
    assert not ec2.new.created_recently("The key pair 'lab' does not exist")


def test_error_text_with_a_name_deleted_from_here_is_not_recent(ec2):
    ec2.answers += [KEY_MADE, KEY_DELETED]
    ec2.import_key_pair(KeyName="lab", PublicKeyMaterial=b"x")
    ec2.delete_key_pair(KeyName="lab")
    assert not ec2.new.created_recently("The key pair 'lab' does not exist")
