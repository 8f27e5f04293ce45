"""Checkpoint buckets and metadata services that send wrong or malicious responses."""

import json
from pathlib import Path

import pytest

from cloudgpu.node.agent import instance_metadata, s3_upload
from cloudgpu.node.agent.s3_upload import CheckpointBucket, InstanceRole, RoleKeys
from cloudgpu.node.agent.untrusted_data import AgentError
from tests.bad_http.limits import call_within_limits
from tests.bad_http.responses import CONTENTS, HEADS, LENGTHS, REDIRECTS, BadResponse, bad_server, cases
from tests.bad_http.server import http_response, raw_server
from tests.bad_http.sockets import collect_sockets  # noqa: F401 - a fixture

pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

SECRETS = ("hush-access", "hush-secret", "hush-token")
BAD_RESPONSES = [
    response for response in (*LENGTHS, *HEADS, *CONTENTS, *REDIRECTS) if "length too small" not in response.name
]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(s3_upload, "_TIMEOUT_S", 2.0)
    monkeypatch.setattr(s3_upload, "_ATTEMPTS", 2)
    monkeypatch.setattr(s3_upload.time, "sleep", lambda _seconds: None)
    monkeypatch.setattr(instance_metadata, "_TIMEOUT_S", 2.0)
    monkeypatch.setattr(s3_upload, "PART", 1000)


def kept(url: str, tmp_path: Path, size: int):
    (tmp_path / "ckpt").write_bytes(b"x" * size)
    place = CheckpointBucket({"bucket": "b", "region": "us-east-1", "endpoint": url})
    place._role._keys = RoleKeys(*SECRETS, until=2**40)
    return place.send(str(tmp_path / "ckpt"), "ckpt", {}, lambda _state: None)


@pytest.mark.parametrize("bad_response", cases(BAD_RESPONSES))
def test_upload_to_a_misbehaving_bucket_fails_without_exposing_secrets(bad_response: BadResponse, tmp_path: Path):
    with bad_server(bad_response) as server:
        found = call_within_limits(lambda: kept(server.url, tmp_path, 2500))
    assert isinstance(found, AgentError), found
    assert found.message.isprintable()
    assert not any(secret in repr((found.message, found.hint)) for secret in SECRETS)


@pytest.mark.parametrize(("size", "parts"), [(2500, 3), (3001, 3), (100_000, 3)])
def test_parts_grow_with_the_file_because_s3_limits_their_number(size: int, parts: int, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(s3_upload, "_MOST_PARTS", 3)

    def respond(request):
        body = b"<UploadId>u</UploadId><CompleteMultipartUploadResult/>" if request.method == "POST" else b""
        return [http_response(body=body, etag='"e"')]

    with raw_server(respond) as server:
        assert kept(server.url, tmp_path, size) == size
    assert [request.method for request in server.requests].count("PUT") == parts


@pytest.mark.parametrize("bad_response", cases(BAD_RESPONSES))
def test_misbehaving_metadata_service_yields_no_keys(bad_response: BadResponse, monkeypatch):
    with bad_server(bad_response) as server:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
        found = call_within_limits(lambda: InstanceRole().keys())
    assert isinstance(found, AgentError), found
    assert found.message.isprintable()


@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect"])
@pytest.mark.parametrize("size", [10, 2500])
def test_checkpoint_upload_follows_no_redirect(status: str, size: int, tmp_path: Path):
    with raw_server(lambda _: [http_response(body=b"<UploadId>u</UploadId>", etag='"e"')], "127.0.0.2") as thief:
        with raw_server(lambda _: [http_response(status, location=f"{thief.url}/x")]) as server:
            found = call_within_limits(lambda: kept(server.url, tmp_path, size))
        assert isinstance(found, AgentError), found
        assert thief.requests == []


@pytest.mark.parametrize("path", ["/latest/api/token", "/latest/meta-data"])
def test_metadata_service_token_follows_no_redirect(path: str, monkeypatch):
    def respond(request):
        if request.path.startswith(path):
            return [http_response("302 Found", location=f"{thief.url}/x")]
        return [http_response(body=b"hush-token")]

    with raw_server(lambda _: [http_response(body=b"role")], "127.0.0.2") as thief, raw_server(respond) as server:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
        assert isinstance(call_within_limits(lambda: InstanceRole().keys()), AgentError)
        assert thief.requests == []


KEYS = {"AccessKeyId": "a", "SecretAccessKey": "s", "Token": "t", "Expiration": "2999-01-01T00:00:00Z"}
BROKEN = {
    "no JSON": "<html>",
    "a list": "[]",
    "deep": "[" * 100_000,
    "no secret": json.dumps({**KEYS, "SecretAccessKey": None}),
    "no token": json.dumps({name: text for name, text in KEYS.items() if name != "Token"}),
    "no moment": json.dumps({**KEYS, "Expiration": "soon"}),
    "a moment that is a number": json.dumps({**KEYS, "Expiration": 5}),
    "a key with a line": json.dumps({**KEYS, "AccessKeyId": "a\r\nX-Y: z"}),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_malformed_role_keys_are_rejected_without_being_shown(text: str, monkeypatch):
    def respond(request):
        return [http_response(body=text.encode() if request.path.endswith("/nodes") else b"nodes")]

    with raw_server(respond) as server:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
        found = call_within_limits(lambda: InstanceRole().keys())
    assert isinstance(found, AgentError), found
    assert found.code == "no-role"
    assert "X-Y" not in found.message


PARTS = {
    "an upload without a name": (b"<InitiateMultipartUploadResult/>", '"e"', b"<CompleteMultipartUploadResult/>"),
    "a part without a tag": (b"<UploadId>u</UploadId>", "", b"<CompleteMultipartUploadResult/>"),
    "an error with status 200": (
        b"<UploadId>u</UploadId>",
        '"e"',
        b"<Error xmlns='x'><Code>InternalError</Code></Error>",
    ),
    "a web page at the end": (b"<UploadId>u</UploadId>", '"e"', b"<html>"),
    "nothing at the end": (b"<UploadId>u</UploadId>", '"e"', b""),
}


@pytest.mark.parametrize("bad_response", PARTS.values(), ids=PARTS)
def test_upload_without_valid_completion_response_fails(bad_response, tmp_path: Path):
    begun, tag, ended = bad_response

    def respond(request):
        if request.method == "PUT":
            return [http_response(etag=tag)]
        return [http_response(body=begun if "uploads=" in request.path else ended)]

    with raw_server(respond) as server:
        found = call_within_limits(lambda: kept(server.url, tmp_path, 2500))
    assert isinstance(found, AgentError), found


def test_completed_multipart_upload_is_counted(tmp_path: Path):
    def respond(request):
        if request.method == "PUT":
            return [http_response(etag='"e"')]
        begun = "uploads=" in request.path
        return [http_response(body=b"<UploadId>u</UploadId>" if begun else b"<CompleteMultipartUploadResult/>")]

    with raw_server(respond) as server:
        assert kept(server.url, tmp_path, 2500) == 2500
