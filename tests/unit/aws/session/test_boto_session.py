"""boto3 sessions read the service models without their documentation, and otherwise unchanged."""

import inspect
import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import UnknownServiceError
from botocore.loaders import Loader
from botocore.session import Session as BotocoreSession

from cloudgpu.aws.session.credentials import ServiceModelFiles, boto3_session

MODELS = ("ec2", "efs", "fsx", "iam", "pricing", "s3", "scheduler", "service-quotas", "ssm", "sts")


def keyed_session() -> boto3.Session:
    return boto3_session(
        BotocoreSession(), aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1"
    )


def without_texts(value: Any) -> Any:
    """Return JSON in which every text named `documentation` is empty."""
    if isinstance(value, dict):
        return {
            name: "" if name == "documentation" and isinstance(item, str) else without_texts(item)
            for name, item in value.items()
        }
    return [without_texts(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("service", MODELS)
def test_a_model_lacks_only_its_documentation(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not a model that tests share: botocore changes the paths of S3's when it makes a client.
    monkeypatch.setattr(ServiceModelFiles, "load_file", inspect.unwrap(ServiceModelFiles.load_file))
    loaded = Loader(file_loader=ServiceModelFiles()).load_service_model(service, "service-2")
    original = Loader().load_service_model(service, "service-2")
    assert loaded == without_texts(original)
    assert loaded != original


def test_a_member_named_documentation_is_kept(tmp_path: Path) -> None:
    model = {"members": {"documentation": {"shape": "String", "documentation": "text"}}, "documentation": "text"}
    (tmp_path / "service-2.json").write_text(json.dumps(model))
    loaded = ServiceModelFiles().load_file(str(tmp_path / "service-2"))
    assert loaded == {"members": {"documentation": {"shape": "String", "documentation": ""}}, "documentation": ""}


def test_clients_of_a_session_have_no_documentation() -> None:
    session = keyed_session()
    client = session.client("ec2")
    assert client.meta.service_model.operation_model("RunInstances").documentation == ""
    assert client.meta.endpoint_url == "https://ec2.us-east-1.amazonaws.com"


@pytest.mark.parametrize("service", MODELS)
def test_parameters_whose_documentation_botocore_requires_can_be_read(service: str) -> None:
    """S3's calls read them, and botocore fails if one has no documentation."""
    session = keyed_session()
    plain = boto3.Session(aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1")
    model, expected = (one.client(service).meta.service_model for one in (session, plain))
    names = [parameter.name for parameter in expected.client_context_parameters]
    assert [parameter.name for parameter in model.client_context_parameters] == names
    assert bool(names) is (service == "s3")


def test_there_is_no_model_of_an_unknown_service() -> None:
    assert ServiceModelFiles().load_file("/nowhere/service-2") is None


def test_a_service_without_a_model_is_refused_as_by_botocore() -> None:
    with pytest.raises(UnknownServiceError, match="nowhere"):
        keyed_session().client("nowhere")


def test_operations_without_a_model_for_their_pages_cannot_be_paginated() -> None:
    client = keyed_session().client("sts")  # botocore has a paginators-1 file without any pages, or no file at all
    assert not client.can_paginate("get_caller_identity")


def test_models_below_the_path_of_aws_data_path_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "own" / "2020-01-01"
    folder.mkdir(parents=True)
    model = Loader().load_service_model("sts", "service-2")
    (folder / "service-2.json").write_text(json.dumps(model))
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    assert keyed_session()._session.get_component("data_loader").load_service_model("own", "service-2")["operations"]
