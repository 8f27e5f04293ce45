"""The undocumented parts of botocore that we rely on."""

import boto3
import pytest
from botocore import xform_name
from botocore.loaders import Loader
from botocore.model import OperationNotFoundError
from botocore.parsers import ResponseParserError, create_parser
from botocore.session import get_session


def test_ec2_paginators_define_result_keys_and_tokens() -> None:
    rows = Loader().load_service_model("ec2", "paginators-1")["pagination"]
    assert rows["DescribeNatGateways"]["result_key"] == "NatGateways"
    assert {"input_token", "output_token", "limit_key", "result_key"} <= set(rows["DescribeInstances"])


def test_operations_have_snake_case_client_methods() -> None:
    client = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    for operation in ("RunInstances", "CreateFleet", "DescribeCapacityBlockOfferings"):
        assert callable(getattr(client, xform_name(operation)))


def test_unknown_operation_raises_operation_not_found_error() -> None:
    with pytest.raises(OperationNotFoundError):
        get_session().get_service_model("ec2").operation_model("Nothing")


def test_invalid_xml_response_raises_parser_error() -> None:
    parser = create_parser("ec2")
    shape = get_session().get_service_model("ec2").operation_model("DescribeVpcs").output_shape
    with pytest.raises(ResponseParserError):
        parser.parse({"status_code": 200, "headers": {}, "body": b"<no"}, shape)


def test_api_call_emits_before_call_and_after_call_events() -> None:
    seen: list[str] = []
    client = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")

    def note(event_name: str, **_: object) -> None:
        seen.append(event_name)

    def answer(event_name: str, **_: object) -> object:
        seen.append(event_name)
        return (type("Answer", (), {"status_code": 200})(), {"Vpcs": []})

    client.meta.events.register("before-call", answer)
    client.meta.events.register("after-call", note)
    client.describe_vpcs()
    assert seen == ["before-call.ec2.DescribeVpcs", "after-call.ec2.DescribeVpcs"]
