from datetime import date
from typing import Any

import pytest

from cloudgpu.aws.ec2.machine_images import describe_images, resolve_image_ids
from cloudgpu.errors import CloudError
from cloudgpu.plan.named_resources import MachineImageSeen

WANTED = (("/aws/service/a", "us-east-1"), ("/aws/service/b", "us-east-1"))


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send one request at a time, because stubbed responses are ordered."""
    monkeypatch.setattr("cloudgpu.aws.ec2.machine_images._AT_ONCE", 1)


@pytest.mark.parametrize("code", ["ParameterNotFound", "AccessDeniedException"])
def test_unreadable_image_parameter_is_omitted(scripted, code: str) -> None:
    ssm = scripted.stub("ssm")
    ssm.add_response("get_parameter", {"Parameter": {"Value": "ami-1"}}, {"Name": WANTED[0][0]})
    ssm.add_client_error("get_parameter", code)
    assert resolve_image_ids(lambda _: scripted, WANTED) == {WANTED[0]: "ami-1"}
    scripted.done()


def test_other_ssm_errors_are_raised(scripted) -> None:
    scripted.stub("ssm").add_client_error("get_parameter", "InternalServerError", http_status_code=500)
    with pytest.raises(CloudError):
        resolve_image_ids(lambda _: scripted, WANTED[:1])


IMAGE = ("ami-0123456789abcdef0", "us-east-1")
ROOT = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 75, "SnapshotId": "snap-1"}}
ROW = {"ImageId": IMAGE[0], "State": "available", "Architecture": "x86_64", "RootDeviceName": "/dev/sda1"}


def described(scripted, **members) -> MachineImageSeen:
    expected = {"ImageIds": [IMAGE[0]], "IncludeDisabled": True}
    answer = {"Images": [{**ROW, "BlockDeviceMappings": [ROOT], **members}]}
    scripted.stub("ec2").add_response("describe_images", answer, expected)
    return describe_images(lambda _: scripted, [IMAGE])[IMAGE]


def test_image_is_asked_for_by_id_so_that_deprecated_images_are_found(scripted) -> None:
    seen = described(scripted, DeprecationTime="2024-04-20T12:00:00.000Z")
    assert (seen.presence, seen.root_gib, seen.architecture) == ("there", 75, "x86_64")
    assert seen.deprecated_on == date(2024, 4, 20)


@pytest.mark.parametrize(
    ("members", "unfit"),
    [
        ({}, ""),
        ({"State": "disabled"}, "is disabled"),
        ({"State": "pending"}, "is pending"),
        ({"Platform": "windows"}, "is a Windows image"),
        ({"RootDeviceType": "instance-store"}, "has no EBS root volume"),
        ({"VirtualizationType": "paravirtual"}, "is paravirtual, which GPU types do not support"),
        ({"EnaSupport": False}, "does not support enhanced networking (ENA)"),
    ],
)
def test_images_that_no_gpu_instance_starts_from_are_unfit(scripted, members: dict[str, Any], unfit: str) -> None:
    assert described(scripted, **members).unfit == unfit


def test_marketplace_products_of_an_image_are_read(scripted) -> None:
    codes = [{"ProductCodeId": "abc", "ProductCodeType": "marketplace"}]
    assert described(scripted, ProductCodes=codes).product_codes == ("abc",)


@pytest.mark.parametrize("code", ["InvalidAMIID.NotFound", "InvalidAMIID.Unavailable", "InvalidAMIID.Malformed"])
def test_image_that_aws_does_not_find_is_missing(scripted, code: str) -> None:
    scripted.stub("ec2").add_client_error("describe_images", code, "no such image")
    assert describe_images(lambda _: scripted, [IMAGE])[IMAGE].presence == "missing"


@pytest.mark.parametrize(("code", "presence"), [("ParameterNotFound", "missing"), ("AccessDeniedException", "unknown")])
def test_unresolved_parameter_is_missing_or_unknown(scripted, code: str, presence: str) -> None:
    scripted.stub("ssm").add_client_error("get_parameter", code, "said so")
    assert describe_images(lambda _: scripted, WANTED[:1])[WANTED[0]].presence == presence
