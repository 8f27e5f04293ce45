"""Misbehaving registries and web servers during planning: a typed result in time, and no leaked login."""

import json
import threading

import pytest

from cloudgpu.app.planning.image_check import RegistryImages
from cloudgpu.app.runs import datasets as web
from cloudgpu.errors import AuthError, RecipeError
from cloudgpu.recipe.schema import Data, Environment
from cloudgpu.run.registry_logins import RegistryLogin
from tests.bad_http.limits import call_within_limits
from tests.bad_http.responses import MANIFEST, BadResponse, bad_server, cases
from tests.bad_http.server import http_response, raw_server
from tests.bad_http.sockets import collect_sockets  # noqa: F401 - a fixture

pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

WITHIN_S = 5.0
SECRET = "hush-hush"


def no_credentials(region: str) -> RegistryLogin:
    raise AuthError(f"no credentials for {region}", code="NoCredentials")


def ask(address: str, *, login: bool = True, tag: str = ":1"):
    container = {"image": f"{address}/team/own{tag}", **({"login": "ann", "password": "KEY"} if login else {})}
    environment = Environment.model_validate({"container": container})
    return RegistryImages({"KEY": SECRET}, no_credentials, within_s=WITHIN_S)(environment)


@pytest.fixture
def uncaught(monkeypatch):
    """Uncaught errors in threads, which a reported timeout would otherwise hide."""
    found: list = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_value))
    return found


@pytest.mark.parametrize("bad_response", cases())
def test_misbehaving_registry_leaves_image_presence_unknown(bad_response: BadResponse, uncaught):
    with bad_server(bad_response) as server:
        seen = call_within_limits(lambda: ask(server.address))
    assert uncaught == []
    assert not isinstance(seen, BaseException), seen
    assert seen.presence in ("unknown", "refused"), seen
    assert seen.why.isprintable()
    assert len(seen.why) < 400
    assert SECRET not in repr(seen)


@pytest.mark.parametrize("bad_response", cases())
def test_misbehaving_web_server_is_a_recipe_error(bad_response: BadResponse, monkeypatch):
    monkeypatch.setattr(web, "_WEB_TIMEOUT_S", WITHIN_S, raising=False)
    with bad_server(bad_response) as server:
        dataset = Data.model_validate({"name": "x", "from": f"{server.url}/set.tar", "to": "/data/x"})
        found = call_within_limits(lambda: web.list_web_files(dataset, ()))
    if bad_response.name in HONEST_ENOUGH:
        assert [file.size > 0 for file in found] == [True]
        return
    assert isinstance(found, RecipeError), found
    assert found.message.isprintable()
    assert found.hint


HONEST_ENOUGH = {
    "length too large",
    "length too small",
    "body byte by byte",
    "a web page",
    "packed",
    "an S3 error with status 200",
}
"""Only the node that downloads the file can detect these; planning requests just the length."""


def tokens_from(realm: str):
    return http_response("401 Unauthorized", www_authenticate=f'Bearer realm="{realm}",service="s"')


def test_login_is_not_sent_to_token_server_of_redirect_target():
    """A redirect target that names its own token server receives neither password nor token."""
    with (
        raw_server(lambda _: [http_response(body=b'{"token": "t"}')], "127.0.0.3") as thief,
        raw_server(lambda _: [tokens_from(f"{thief.url}/token")], "127.0.0.2") as store,
        raw_server(lambda _: [http_response("307 Temporary Redirect", location=f"{store.url}/blob")]) as registry,
    ):
        seen = ask(registry.address)
    assert seen.presence in ("unknown", "refused")
    assert [request.headers.get("authorization") for request in (*store.requests, *thief.requests)] in (
        [None],
        [None, None],
    )
    assert thief.requests == []


def test_remote_token_server_without_tls_gets_no_password():
    with raw_server(lambda _: [tokens_from("http://198.51.100.7/token")]) as registry:
        seen = ask(registry.address)
    assert (seen.presence, "198.51.100.7 without TLS" in seen.why) == ("unknown", True)


@pytest.mark.parametrize(
    "realm",
    [
        "http://169.254.169.254/latest/api/token",
        "file:///etc/passwd",
        "ftp://127.0.0.1/token",
        "https://[x",
        "https://127.0.0.1:99999999/",
        "\x1b[2J",
        " ",
        "x" * 5000,
    ],
)
def test_invalid_token_server_address_is_not_contacted(realm: str, uncaught):
    with raw_server(lambda _: [tokens_from(realm)]) as registry:
        seen = ask(registry.address)
    assert uncaught == []
    assert seen.presence == "unknown"
    assert seen.why.isprintable()
    assert len(seen.why) < 400


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer realm",
        'Bearer realm="',
        "Bearer " + 'a="' * 20_000,
        "Bearer " + "a=," * 20_000,
        ", " * 30_000 + "Bearer",
        "Basic " * 10_000,
        "\x00\x1b",
        "Bearer realm=x,realm=y",
    ],
)
def test_malformed_challenge_is_parsed_without_delay(header: str, uncaught):
    with raw_server(lambda _: [http_response("401 Unauthorized", www_authenticate=header)]) as registry:
        seen = call_within_limits(lambda: ask(registry.address))
    assert uncaught == []
    assert seen.presence in ("unknown", "refused")
    assert "did not respond within" not in seen.why


@pytest.mark.parametrize(
    "token", ["x" * 2_000_000, "\xe9", "\u20ac", "a b", "a\r\nX: y", 7, None, ["t"], {"t": 1}, True, "\x00"]
)
def test_invalid_token_is_not_sent(token, uncaught):
    def respond(request):
        if request.path.startswith("/token"):
            return [http_response(body=json.dumps({"token": token}).encode())]
        return [tokens_from(f"http://{request.headers['host']}/token")]

    with raw_server(respond) as registry:
        seen = ask(registry.address)
        sent = [request.headers["authorization"] for request in registry.requests if "authorization" in request.headers]
    assert uncaught == []
    assert seen.presence == "unknown"
    assert all(text.startswith("Basic ") for text in sent)


LAYERS = {
    "negative": -1,
    "a fraction": 1.5,
    "not a number": float("nan"),
    "true": True,
    "a text": "5",
    "nothing": None,
    "10^30": 10**30,
}


@pytest.mark.parametrize("size", LAYERS.values(), ids=LAYERS)
def test_layer_with_invalid_size_leaves_image_size_unknown(size):
    body = json.dumps({"schemaVersion": 2, "layers": [{"size": 5}, {"size": size}]}).encode()
    with raw_server(lambda _: [http_response(body=body)]) as registry:
        seen = ask(registry.address)
    assert (seen.presence, seen.packed_bytes) == ("there", None)


DIGESTS = [
    "../../../other/blobs/x",
    "sha256:../../x",
    "SHA256:" + "0" * 64,
    "sha256:" + "A" * 64,
    "md5:" + "0" * 32,
    "x",
]


@pytest.mark.parametrize("digest", DIGESTS)
def test_invalid_digest_is_never_used_in_a_url(digest: str):
    config = json.dumps({"schemaVersion": 2, "config": {"digest": digest}, "layers": []}).encode()
    index = json.dumps(
        {"schemaVersion": 2, "manifests": [{"digest": digest, "platform": {"os": "linux", "architecture": "amd64"}}]}
    ).encode()
    for body in (config, index):
        with raw_server(lambda _, body=body: [http_response(body=body)]) as registry:
            seen = ask(registry.address)
        assert [request.path for request in registry.requests] == ["/v2/team/own/manifests/1"]
        assert seen.packed_bytes is None


def test_content_that_does_not_match_its_digest_is_rejected():
    """Content requested by tag has to be trusted; content requested by digest is verified."""
    digest = f"sha256:{'0' * 64}"
    with raw_server(lambda _: [http_response(body=MANIFEST)]) as registry:
        seen = ask(registry.address, tag=f":1@{digest}")
    assert (seen.presence, "content that does not match its digest" in seen.why) == ("unknown", True)


def test_huge_or_deeply_nested_manifest_leaves_image_unknown():
    many = json.dumps({"schemaVersion": 2, "layers": [{"size": 1}] * 1_000_000}).encode()
    deep = b'{"schemaVersion": 2, "layers": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    for body in (many, deep):
        with raw_server(lambda _, body=body: [http_response(body=body)]) as registry:
            seen = call_within_limits(lambda registry=registry: ask(registry.address))
        assert (seen.presence, seen.packed_bytes) == ("unknown", None)
