"""A server whose environment names a report compares every response with botocore's service models."""

from pathlib import Path

import pytest
from moto.efs.responses import EFSResponse

from cloudgpu.aws.service_model import REPORT_VARIABLE
from cloudgpu.rehearsal.aws_api.s3_and_efs import StrictEfs

pytestmark = [pytest.mark.main_path, pytest.mark.rehearsal]


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The report of the server that is started after this fixture, beside the one that fails every test."""
    path = tmp_path / "report"
    monkeypatch.setenv(REPORT_VARIABLE, str(path))
    return path


@pytest.fixture
def checked(report, make_rig, tmp_path):
    with make_rig(tmp_path) as rig:
        yield rig


def test_response_that_does_not_fit_is_recorded_although_the_client_accepts_it(checked, report, monkeypatch):
    efs = checked.aws("efs")
    efs.create_file_system(CreationToken="fits")
    assert not report.exists()
    monkeypatch.setattr(StrictEfs, "create_file_system", EFSResponse.create_file_system)
    made = efs.create_file_system(CreationToken="moto")
    assert "LifecyclePolicies" not in made
    assert report.read_text() == (
        "response efs CreateFileSystem: LifecyclePolicies: unknown member of FileSystemDescription\n"
    )


def test_state_of_an_attached_internet_gateway_is_the_one_that_ec2_sends(checked, report):
    ec2 = checked.ec2
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(VpcId=vpc, InternetGatewayId=gateway)
    (row,) = ec2.describe_internet_gateways(InternetGatewayIds=[gateway])["InternetGateways"]
    assert row["Attachments"] == [{"State": "available", "VpcId": vpc}]
    assert not report.exists()
