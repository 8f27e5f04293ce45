"""boto3 sessions read the service models without their documentation, and otherwise unchanged."""

import json
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import Loader

from cloudgpu.aws.session.boto_session import ServiceModelFiles, open_boto_session

MODELS = ("ec2", "efs", "fsx", "iam", "pricing", "s3", "scheduler", "service-quotas", "ssm", "sts")


def without_texts(value: Any) -> Any:
    """Return JSON without the texts named `documentation`."""
    if isinstance(value, dict):
        return {
            name: without_texts(item)
            for name, item in value.items()
            if name != "documentation" or not isinstance(item, str)
        }
    return [without_texts(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("service", MODELS)
def test_a_model_lacks_only_its_documentation(service: str) -> None:
    loaded = Loader(file_loader=ServiceModelFiles()).load_service_model(service, "service-2")
    original = Loader().load_service_model(service, "service-2")
    assert loaded == without_texts(original)
    assert loaded != original


def test_a_member_named_documentation_is_kept(tmp_path: Path) -> None:
    model = {"members": {"documentation": {"shape": "String", "documentation": "text"}}, "documentation": "text"}
    (tmp_path / "service-2.json").write_text(json.dumps(model))
    loaded = ServiceModelFiles().load_file(str(tmp_path / "service-2"))
    assert loaded == {"members": {"documentation": {"shape": "String"}}}


def test_clients_of_a_session_have_no_documentation() -> None:
    session = open_boto_session(aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1")
    client = session.client("ec2")
    assert client.meta.service_model.operation_model("RunInstances").documentation == ""
    assert client.meta.endpoint_url == "https://ec2.us-east-1.amazonaws.com"


def test_there_is_no_model_of_an_unknown_service() -> None:
    assert ServiceModelFiles().load_file("/nowhere/service-2") is None
