"""Instance metadata: tokens only, own name only."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.rehearsal.node_spec import NodeSpec
from cloudgpu.rehearsal.nodes.servers.metadata import MetadataService, Request, parse_head
from cloudgpu.rehearsal.nodes.values import RoleCredentials

_SPEC = NodeSpec(
    instance_id="i-0abc", instance_type="g5.xlarge", region="us-east-1", zone="us-east-1c", image_id="ami-1",
    address="", user="ubuntu", authorized_keys=("ssh-ed25519 A me",), user_data=b"#!/bin/sh", gpu="A10G", gpus=1,
    gpu_memory_mib=24576, efa_interfaces=0, role="trainer",
)  # fmt: skip
_KEYS = RoleCredentials("AKIA", "secret", "token", datetime(2030, 1, 1, tzinfo=UTC))
_HOST = {"host": "127.1.2.3:1338"}


class _Service:
    def __init__(self, keys=_KEYS):
        self.now = 1000.0
        self.service = MetadataService(_SPEC, "127.1.2.3", 1338, now_s=lambda: self.now, credentials=lambda: keys)

    def token(self, seconds="60"):
        headers = _HOST | {"x-aws-ec2-metadata-token-ttl-seconds": seconds}
        return self.service.answer(Request("PUT", "/latest/api/token", headers))

    def get(self, path, token, **more):
        headers = _HOST | {"x-aws-ec2-metadata-token": token} | more
        return self.service.answer(Request("GET", f"/latest/{path}", headers))


def test_values_need_a_token_that_has_not_expired():
    service = _Service()
    assert service.get("meta-data/instance-id", "")[0] == 401
    _, token = service.token()
    assert service.get("meta-data/instance-id", token) == (200, "i-0abc")
    service.now += 61
    assert service.get("meta-data/instance-id", token)[0] == 401


@pytest.mark.parametrize("seconds", ["", "0", "21601", "x", "-1"])
def test_a_token_needs_a_sensible_life(seconds):
    assert _Service().token(seconds)[0] == 400


def test_foreign_names_and_forwarded_requests_are_refused():
    service = _Service()
    _, token = service.token()
    assert service.get("meta-data/instance-id", token, host="evil.example:1338")[0] == 403
    assert service.get("meta-data/instance-id", token, **{"x-forwarded-for": "1.2.3.4"})[0] == 403
    assert (
        service.service.answer(Request("POST", "/latest/meta-data/", _HOST | {"x-aws-ec2-metadata-token": token}))[0]
        == 405
    )


def test_listings_values_and_what_is_not_there():
    service = _Service()
    _, token = service.token()
    assert service.get("meta-data/placement/", token) == (200, "availability-zone\nregion")
    assert "iam/" in service.get("meta-data/", token)[1].splitlines()
    assert service.get("meta-data/spot/instance-action", token)[0] == 404
    assert service.get("meta-data/public-keys/0/openssh-key", token) == (200, "ssh-ed25519 A me")
    assert service.get("user-data", token) == (200, "#!/bin/sh")
    assert json.loads(service.get("dynamic/instance-identity/document", token)[1])["availabilityZone"] == "us-east-1c"


def test_the_role_has_the_keys_that_the_host_was_given():
    service = _Service()
    _, token = service.token()
    assert service.get("meta-data/iam/security-credentials/", token) == (200, "trainer")
    keys = json.loads(service.get("meta-data/iam/security-credentials/trainer", token)[1])
    assert (keys["AccessKeyId"], keys["Expiration"]) == ("AKIA", "2030-01-01T00:00:00Z")
    bare = _Service(keys=None)
    _, token = bare.token()
    assert bare.get("meta-data/iam/security-credentials/", token)[0] == 404


def test_a_head_is_read_and_rubbish_is_none():
    head = b"GET /latest/meta-data/?x HTTP/1.1\r\nHost: a\r\nX-Y:  b \r\n\r\n"
    assert parse_head(head) == Request("GET", "/latest/meta-data/", {"host": "a", "x-y": "b"})
    assert parse_head(b"hello\r\n\r\n") is None


@given(st.binary(max_size=300))
def test_no_head_breaks_it(head):
    request = parse_head(head)
    assert request is None or _Service().service.answer(request)[0] in (400, 401, 403, 405)
