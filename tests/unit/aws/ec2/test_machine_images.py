import pytest

from cloudgpu.aws.ec2.machine_images import resolve_image_ids
from cloudgpu.errors import CloudError

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
