"""Replayed calls: answered in order by operation, region and parameters, with botocore's types, without a request."""

from datetime import UTC, datetime
from types import SimpleNamespace

import boto3
import pytest
from live_tier.replay import NotRecordedError, Replay

from cloudgpu.aws.session.recording import keep_parameters

VPC = "vpc-00000000000000001"


def client_of(calls):
    client = boto3.client("ec2", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    replay = Replay(calls)
    client.meta.events.register_last("before-parameter-build", keep_parameters)
    client.meta.events.register_last("before-call", replay.answer)
    return client


def call(operation, parameters, answer, status=200, region="us-east-1"):
    return {
        "service": "ec2",
        "region": region,
        "operation": operation,
        "parameters": parameters,
        "status": status,
        "answer": answer,
    }


def test_equal_calls_are_answered_in_their_order():
    client = client_of([call("DescribeVpcs", {}, {"Vpcs": []}), call("DescribeVpcs", {}, {"Vpcs": [{"VpcId": VPC}]})])
    assert [client.describe_vpcs()["Vpcs"] for _ in range(2)] == [[], [{"VpcId": VPC}]]
    with pytest.raises(NotRecordedError, match="no answer to DescribeVpcs in us-east-1"):
        client.describe_vpcs()


def test_exact_parameters_are_preferred_to_the_same_form():
    answers = [call("DescribeVpcs", {"VpcIds": [f"vpc-{n:017d}"]}, {"Vpcs": [{"VpcId": str(n)}]}) for n in (1, 2)]
    client = client_of(answers)
    assert client.describe_vpcs(VpcIds=[f"vpc-{2:017d}"])["Vpcs"] == [{"VpcId": "2"}]
    assert client.describe_vpcs(VpcIds=["vpc-0a1b2c3d4e5f60718"])["Vpcs"] == [{"VpcId": "1"}]


def test_other_parameters_and_other_regions_do_not_match():
    client = client_of([call("DescribeVpcs", {"MaxResults": 5}, {}), call("DescribeVpcs", {}, {}, region="us-west-2")])
    with pytest.raises(NotRecordedError):
        client.describe_vpcs()


def test_error_is_raised_with_its_code():
    error = {"Error": {"Code": "UnauthorizedOperation", "Message": "no"}, "ResponseMetadata": {}}
    client = client_of([call("DescribeVpcs", {}, error, status=403)])
    with pytest.raises(client.exceptions.ClientError, match="UnauthorizedOperation"):
        client.describe_vpcs()


def test_times_get_their_type_back():
    row = {"InstanceId": "i-00000000000000001", "LaunchTime": "2026-11-25T19:00:00+00:00"}
    client = client_of([call("DescribeInstances", {}, {"Reservations": [{"Instances": [row]}]})])
    found = client.describe_instances()["Reservations"][0]["Instances"][0]
    assert found["LaunchTime"] == datetime(2026, 11, 25, 19, tzinfo=UTC)


def test_times_and_idempotency_tokens_may_differ():
    parameters = {"StartTime": "2026-11-25T19:00:00+00:00"}
    client = client_of([call("DescribeSpotPriceHistory", parameters, {"SpotPriceHistory": []})])
    assert client.describe_spot_price_history(StartTime=datetime(2027, 1, 1, tzinfo=UTC))["SpotPriceHistory"] == []
    fleet = [{"LaunchTemplateSpecification": {"LaunchTemplateId": "lt-00000000000000001", "Version": "1"}}]
    sent = {
        "ClientToken": "a",
        "LaunchTemplateConfigs": fleet,
        "TargetCapacitySpecification": {"TotalTargetCapacity": 1},
    }
    model = SimpleNamespace(name="CreateFleet", input_shape=None, output_shape=None)
    model.input_shape = client.meta.service_model.operation_model("CreateFleet").input_shape
    replay = Replay([call("CreateFleet", {**sent, "ClientToken": "b"}, {"FleetId": "f"})])
    context = {"client_region": "us-east-1"}
    keep_parameters(sent, model, context)
    assert replay.answer(model, context)[1] == {"FleetId": "f"}
