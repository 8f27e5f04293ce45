"""Instance metadata: a token is required, and only the node's own host name is accepted."""

import json
import re
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.rehearsal.nodes.servers.metadata import MetadataService, Request, notice_entries, parse_head
from cloudgpu.rehearsal.nodes.values import NodeSpec, RoleCredentials
from tests.unit.rehearsal.nodes.metadata_facts import FACTS, LISTED, REFUSALS

_SPEC = NodeSpec(
    instance_id="i-0abc", instance_type="g5.xlarge", region="us-east-1", zone="us-east-1c", image_id="ami-1",
    address="", user="ubuntu", authorized_keys=("ssh-ed25519 A me",), user_data=b"#!/bin/sh", gpu="A10G", gpus=1,
    gpu_memory_mib=24576, efa_interfaces=0, role="trainer",
)  # fmt: skip
_KEYS = RoleCredentials("AKIA", "secret", "token", datetime(2030, 1, 1, tzinfo=UTC))
_HOST = {"host": "127.1.2.3:1338"}


class _Service:
    def __init__(self, keys=_KEYS, notices=dict):
        self.now = 1000.0
        self.service = MetadataService(
            _SPEC, "127.1.2.3", 1338, now_s=lambda: self.now, credentials=lambda: keys, notices=notices
        )

    def token(self, seconds="60"):
        headers = _HOST | {"x-aws-ec2-metadata-token-ttl-seconds": seconds}
        return self.service.answer(Request("PUT", "/latest/api/token", headers))

    def get(self, path, token, **more):
        headers = _HOST | {"x-aws-ec2-metadata-token": token} | more
        return self.service.answer(Request("GET", f"/latest/{path}", headers))


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.path)
def test_answer_has_the_form_of_ec2(fact):
    service = _Service(notices=lambda: notice_entries(2000.0, 1900.0))
    _, token = service.token()
    status, body = service.get(fact.path, token)
    assert status == 200
    if isinstance(fact.form, str):
        assert re.fullmatch(fact.form, body), body
        return
    members = json.loads(body)
    assert members.keys() == fact.form.keys()
    for name, form in fact.form.items():
        assert re.fullmatch(form, members[name]), name


def test_listing_of_the_metadata_has_the_form_of_ec2():
    service = _Service(notices=lambda: notice_entries(2000.0, 1900.0))
    _, token = service.token()
    assert tuple(service.get("meta-data/", token)[1].split("\n")) == LISTED


@pytest.mark.parametrize(("status", "title"), REFUSALS.items())
def test_refusal_is_a_page_with_status_and_reason_as_on_ec2(status, title):
    service = _Service()
    _, token = service.token()
    refused = {
        400: lambda: service.token("0"),
        401: lambda: service.get("meta-data/instance-id", "expired"),
        404: lambda: service.get("meta-data/spot/instance-action", token),
    }
    found, body = refused[status]()
    page = ElementTree.fromstring(body)
    names = {"x": "http://www.w3.org/1999/xhtml"}
    assert found == status
    assert [page.findtext(path, namespaces=names) for path in ("x:head/x:title", "x:body/x:h1")] == [title, title]


def test_metadata_requires_an_unexpired_token():
    service = _Service()
    assert service.get("meta-data/instance-id", "")[0] == 401
    _, token = service.token()
    assert service.get("meta-data/instance-id", token) == (200, "i-0abc")
    service.now += 61
    assert service.get("meta-data/instance-id", token)[0] == 401


@pytest.mark.parametrize("seconds", ["", "0", "21601", "x", "-1"])
def test_token_with_invalid_ttl_is_rejected(seconds):
    assert _Service().token(seconds)[0] == 400


def test_foreign_hosts_and_forwarded_requests_are_rejected():
    service = _Service()
    _, token = service.token()
    assert service.get("meta-data/instance-id", token, host="evil.example:1338")[0] == 403
    assert service.get("meta-data/instance-id", token, **{"x-forwarded-for": "1.2.3.4"})[0] == 403
    assert (
        service.service.answer(Request("POST", "/latest/meta-data/", _HOST | {"x-aws-ec2-metadata-token": token}))[0]
        == 405
    )


def test_metadata_paths_return_listings_values_or_404():
    service = _Service()
    _, token = service.token()
    assert service.get("meta-data/placement/", token) == (200, "availability-zone\nregion")
    assert "iam/" in service.get("meta-data/", token)[1].splitlines()
    assert service.get("meta-data/spot/instance-action", token)[0] == 404
    assert service.get("meta-data/public-keys/0/openssh-key", token) == (200, "ssh-ed25519 A me")
    assert service.get("user-data", token) == (200, "#!/bin/sh")
    assert json.loads(service.get("dynamic/instance-identity/document", token)[1])["availabilityZone"] == "us-east-1c"


def test_metadata_returns_the_role_credentials_of_the_host():
    service = _Service()
    _, token = service.token()
    assert service.get("meta-data/iam/security-credentials/", token) == (200, "trainer")
    keys = json.loads(service.get("meta-data/iam/security-credentials/trainer", token)[1])
    assert (keys["AccessKeyId"], keys["Expiration"]) == ("AKIA", "2030-01-01T00:00:00Z")
    bare = _Service(keys=None)
    _, token = bare.token()
    assert bare.get("meta-data/iam/security-credentials/", token)[0] == 404


def test_request_head_is_parsed_and_garbage_is_rejected():
    head = b"GET /latest/meta-data/?x HTTP/1.1\r\nHost: a\r\nX-Y:  b \r\n\r\n"
    assert parse_head(head) == Request("GET", "/latest/meta-data/", {"host": "a", "x-y": "b"})
    assert parse_head(b"hello\r\n\r\n") is None


@given(st.binary(max_size=300))
def test_random_request_heads_never_crash_the_service(head):
    request = parse_head(head)
    assert request is None or _Service().service.answer(request)[0] in (400, 401, 403, 405)


def test_metadata_is_served_in_dated_versions_at_the_address_that_clients_know():
    service = _Service()
    _, token = service.token()
    headers = {"host": "169.254.169.254", "x-aws-ec2-metadata-token": token}
    for version in ("latest", "2009-04-04", "2021-03-23", "1.0"):
        assert service.service.answer(Request("GET", f"/{version}/meta-data/instance-id", headers)) == (200, "i-0abc")
    assert service.service.answer(Request("GET", "/newest/meta-data/instance-id", headers))[0] == 404


def test_public_keys_are_listed_with_the_names_of_their_key_pairs():
    service = _Service()
    _, token = service.token()
    assert service.get("meta-data/public-keys/", token) == (200, "0=me")
    assert service.get("meta-data/public-keys/0/", token) == (200, "openssh-key")
