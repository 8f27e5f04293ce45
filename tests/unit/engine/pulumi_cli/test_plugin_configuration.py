"""Configuration of the plugin, which accepts only endpoints on this machine."""

import json

import pytest

from cloudgpu.engine.direct.protobuf_values import UNKNOWN
from cloudgpu.engine.plugin.provider import loopback_endpoint, read_configuration
from cloudgpu.engine.plugin.tokens import Tokens
from cloudgpu.errors import AuthError, BadRequestError

KEYS = {"AWS_ACCESS_KEY_ID": "K", "AWS_SECRET_ACCESS_KEY": "S"}
HERE = {"AWS_ENDPOINT_URL": "http://127.0.0.1:4566", **KEYS}
URN = "urn:pulumi:demo::cloudgpu::aws:ec2/keyPair:KeyPair::demo"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.9.9.9:1", "http://[::1]:1", "http://localhost:1"])
def test_loopback_endpoints_are_accepted(url):
    assert loopback_endpoint({**KEYS, "AWS_ENDPOINT_URL": url}).url == url


@pytest.mark.parametrize(
    "url",
    ["", "https://ec2.us-east-1.amazonaws.com", "http://10.0.0.1:1", "http://127.0.0.1.example.org", "127.0.0.1:1"],
)
def test_every_other_endpoint_is_rejected(url):
    with pytest.raises(BadRequestError, match="this plugin only works with the rehearsal cloud"):
        loopback_endpoint({**KEYS, "AWS_ENDPOINT_URL": url})
    with pytest.raises(BadRequestError, match="this plugin only works with the rehearsal cloud"):
        read_configuration({"region": "us-east-1"}, {**KEYS, "AWS_ENDPOINT_URL": url})


def test_endpoint_without_access_key_raises_auth_error():
    with pytest.raises(AuthError):
        loopback_endpoint({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})


def test_configuration_reads_region_and_default_tags():
    assert read_configuration({"region": "eu-west-1"}, {**HERE, "AWS_REGION": "us-east-1"}).region == "eu-west-1"
    assert read_configuration({}, {**HERE, "AWS_REGION": "us-east-1"}).region == "us-east-1"
    tags = json.dumps({"tags": {"cloudgpu:cluster": "demo"}})
    assert read_configuration({"region": "r", "defaultTags": tags}, HERE).tags == {"cloudgpu:cluster": "demo"}
    for region in ({}, {"region": UNKNOWN}):
        with pytest.raises(BadRequestError, match="no AWS region"):
            read_configuration(region, HERE)


def test_tokens_are_stable_across_processes_and_unique_per_resource(tmp_path):
    inputs = {"keyName": "a", "tags": {"cloudgpu:token": "t1"}}
    token = Tokens(tmp_path).token(URN, "T", "r", inputs)
    assert Tokens(tmp_path).token(URN, "T", "r", inputs) == token
    assert len(token) <= 64
    others = {
        Tokens(tmp_path).token(URN + "x", "T", "r", inputs),
        Tokens(tmp_path).token(URN, "U", "r", inputs),
        Tokens(tmp_path).token(URN, "T", "s", inputs),
        Tokens(tmp_path).token(URN, "T", "r", {**inputs, "keyName": "b"}),
        Tokens(tmp_path / "elsewhere").token(URN, "T", "r", inputs),
    }
    assert len(others | {token}) == 6
    Tokens(tmp_path).end(URN)
    assert Tokens(tmp_path).token(URN, "T", "r", inputs) != token
    assert Tokens(tmp_path).token(URN + "x", "T", "r", inputs) in others


def test_concurrent_token_calls_share_single_salt(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: Tokens(tmp_path / "new").token(URN, "T", "r", {}), range(32)))
    assert len(found) == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["salt"]
