import pytest

from cloudgpu.aws.ec2.instances import offered_zones
from cloudgpu.aws.session.session import Session
from cloudgpu.errors import AuthError


def test_quotes_list_zones_by_type_and_region(session: Session) -> None:
    wanted = [
        ("p3dn.24xlarge", "us-east-1"),
        ("g4dn.xlarge", "us-east-1"),
        ("p3.16xlarge", "us-east-1"),
        ("zz9.bogus", "eu-west-1"),
    ]
    found = offered_zones(session.in_region, wanted)
    assert found.live
    assert set(found.zones) == set(wanted)
    assert found.zones["p3dn.24xlarge", "us-east-1"] == ("us-east-1c", "us-east-1d")
    assert len(found.zones["g4dn.xlarge", "us-east-1"]) > 2
    assert found.zones["p3.16xlarge", "us-east-1"] == ()
    assert found.zones["zz9.bogus", "eu-west-1"] == ()


def test_empty_request_makes_no_calls() -> None:
    assert offered_zones(pytest.fail, []).zones == {}


def test_region_without_permission_is_unknown_with_reason(scripted) -> None:
    scripted.stub("ec2").add_client_error(
        "describe_instance_type_offerings", "UnauthorizedOperation", "You are not authorized", http_status_code=403
    )
    found = offered_zones(lambda _: scripted, [("p3dn.24xlarge", "us-east-1")])
    assert found.zones == {}
    assert "us-east-1" in found.zones_unknown["us-east-1"]
    assert found.live


def test_authentication_failure_in_region_raises_auth_error(scripted) -> None:
    scripted.stub("ec2").add_client_error("describe_instance_type_offerings", "AuthFailure", http_status_code=401)
    with pytest.raises(AuthError):
        offered_zones(lambda _: scripted, [("p3dn.24xlarge", "us-east-1")])
