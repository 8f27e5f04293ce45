"""What planning learns about an image from a registry, which is simulated here."""

import base64
import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cloudgpu.app.planning import image_check
from cloudgpu.app.planning.image_check import RegistryImages
from cloudgpu.app.planning.registry_http import RegistryClient, UnreachableError
from cloudgpu.errors import AuthError
from cloudgpu.launch.containers import ImageName
from cloudgpu.plan.named_resources import ImageSeen
from cloudgpu.recipe.schema import Environment
from cloudgpu.run.registry_logins import RegistryLogin

PASSWORD = "very:secret\n"
BASIC = "Basic " + base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
AMD, ARM = {"os": "linux", "architecture": "amd64"}, {"os": "linux", "architecture": "arm64"}


def digest_of(content: object) -> str:
    """Return the digest of content as the fake registry sends it."""
    return f"sha256:{hashlib.sha256(json.dumps(content).encode()).hexdigest()}"


CONFIG = f"blobs/{digest_of(AMD)}"
SINGLE = {"schemaVersion": 2, "config": {"digest": digest_of(AMD)}, "layers": [{"size": 5}, {"size": 7}]}
INDEX = {
    "schemaVersion": 2,
    "manifests": [
        {"digest": digest_of("arm"), "platform": ARM},
        {"digest": digest_of(SINGLE), "platform": AMD},
        {"digest": digest_of("proof"), "platform": {"os": "unknown", "architecture": "unknown"}},
    ],
}
GONE = (404, {"errors": [{"code": "MANIFEST_UNKNOWN"}]}, {})


@dataclass
class FakeRegistry:
    """A server that maps paths to status, content and headers; a callable decides by the Authorization header."""

    pages: dict = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    stuck: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                allowed = self.headers.get("Authorization", "")
                registry.requests.append((self.path, allowed))
                page = registry.pages.get(self.path, (404, "no page", {}))
                if page == "stuck":
                    registry.stuck.wait(20)
                    return
                status, content, headers = page(allowed) if callable(page) else page
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.stuck.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def make_registry():
    made = []

    def make(**pages) -> FakeRegistry:
        server = FakeRegistry({f"/v2/team/own/{path}": page for path, page in pages.items()})
        made.append(server)
        return server

    yield make
    for server in made:
        server.close()


@pytest.fixture
def registry(make_registry):
    return make_registry(**{"manifests/1": (200, SINGLE, {}), CONFIG: (200, AMD, {})})


def no_credentials(region: str) -> RegistryLogin:
    raise AuthError(f"no credentials for {region}", code="NoCredentials")


def ask(place: FakeRegistry, *, tag: str = ":1", environ=None, within_s: float = 5, **container):
    environment = Environment.model_validate({"container": {"image": f"{place.address}/team/own{tag}", **container}})
    return RegistryImages(environ or {}, no_credentials, within_s=within_s)(environment)


def with_login(place: FakeRegistry, password: str = PASSWORD):
    return ask(place, login="ann", password="KEY", environ={"KEY": password})


def test_single_manifest_gives_size_and_config_gives_platform(registry):
    seen = ask(registry)
    assert (seen.presence, seen.platforms, seen.packed_bytes) == ("there", ("linux/amd64",), 12)


def test_image_index_gives_platforms_and_size_for_the_nodes(registry):
    registry.pages["/v2/team/own/manifests/1"] = (200, INDEX, {})
    registry.pages[f"/v2/team/own/manifests/{digest_of(SINGLE)}"] = (200, SINGLE, {})
    seen = ask(registry)
    assert (seen.presence, seen.platforms, seen.packed_bytes) == ("there", ("linux/amd64", "linux/arm64"), 12)


def test_image_with_digest_is_requested_by_digest(registry):
    digest = digest_of(SINGLE)
    registry.pages[f"/v2/team/own/manifests/{digest}"] = (200, SINGLE, {})
    assert ask(registry, tag=f":1@{digest}").presence == "there"


def test_nonexistent_image_is_reported_missing(registry):
    registry.pages["/v2/team/own/manifests/1"] = GONE
    seen = ask(registry)
    assert (seen.presence, seen.why) == ("missing", f"image {seen.image} does not exist in {registry.address}")


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ((404, b"<html>", {}), "returned status 404"),
        ((500, {}, {}), "returned status 500"),
        ((429, {}, {}), "responded with status 429 (too many requests); try again later"),
        ((200, b"<html>", {}), "returned something other than a manifest"),
        ((200, b"[" * 100_000, {}), "returned something other than a manifest"),
        ((401, {}, {"WWW-Authenticate": "Negotiate"}), "requires an unsupported login method"),
        ((307, {}, {"Location": "https://[x/"}), "redirects to an invalid address"),
        ((307, {}, {"Location": "/v2/team/own/manifests/1"}), "redirects more than 5 times"),
    ],
)
def test_invalid_registry_response_leaves_presence_unknown(registry, page, why: str):
    registry.pages["/v2/team/own/manifests/1"] = page
    seen = ask(registry)
    assert (seen.presence, seen.why) == ("unknown", f"{registry.address} {why}")


def test_unreachable_registry_leaves_presence_unknown(make_registry):
    place = make_registry()
    place.close()
    place.close = lambda: None
    assert (ask(place).presence, ask(place).why) == (
        "unknown",
        f"cannot reach {place.address}: Connection refused",
    )


def test_unresponsive_registry_times_out_as_unknown(registry):
    registry.pages["/v2/team/own/manifests/1"] = "stuck"
    seen = ask(registry, within_s=0.2)
    assert seen.presence == "unknown"


def test_time_limit_covers_credential_lookup(monkeypatch):
    ended, began, before = threading.Event(), time.monotonic(), set(threading.enumerate())

    def blocked(region: str) -> RegistryLogin:
        ended.wait()
        return no_credentials(region)

    # The abandoned thread continues, so it must not reach a real registry.
    monkeypatch.setattr(image_check, "_described", lambda image, *_: ImageSeen(image, "unknown", ""))
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/own:1"
    seen = RegistryImages({}, blocked, within_s=0.1)(Environment.model_validate({"container": {"image": image}}))
    waited = time.monotonic() - began
    ended.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert (seen.presence, seen.why[-28:], waited < 2.5) == ("unknown", "did not respond within 0.1 s", True)


def password_wanted(page):
    refused = (401, {}, {"WWW-Authenticate": 'Basic realm="here"'})
    return lambda allowed: page if allowed == BASIC else refused


def test_password_is_sent_only_on_challenge_and_never_printed(registry):
    for path, page in list(registry.pages.items()):
        registry.pages[path] = password_wanted(page)
    assert with_login(registry).presence == "there"
    assert registry.requests[-3][1] == ""
    wrong = with_login(registry, "not it")
    assert wrong.presence == "refused"
    assert "for ann" in wrong.why
    assert "not it" not in repr(wrong)
    bare = ask(registry)
    assert (bare.presence, "without a login" in bare.why) == ("refused", True)


def test_public_image_is_found_although_password_is_not_set(registry):
    assert ask(registry, login="ann", password="KEY").presence == "there"
    registry.pages["/v2/team/own/manifests/1"] = password_wanted((200, SINGLE, {}))
    seen = ask(registry, login="ann", password="KEY")
    assert (seen.presence, seen.why.endswith("but KEY is not set")) == ("unknown", True)


def tokens(
    registry: FakeRegistry, token_server: FakeRegistry, allowed: str, status: int = 200, token: str = "t1"
) -> None:
    realm = f'Bearer realm="http://{token_server.address}/token?x=1",service="s p",scope="repository:team/own:pull"'
    for path, page in list(registry.pages.items()):
        registry.pages[path] = lambda got, page=page: (
            page if got == "Bearer t1" else (401, {}, {"WWW-Authenticate": realm})
        )
    path = "/token?x=1&service=s+p&scope=repository%3Ateam%2Fown%3Apull"
    token_server.pages[path] = lambda got: (status, {"token": token}, {}) if got == allowed else (401, {}, {})


@pytest.mark.parametrize("login", [True, False])
def test_token_is_fetched_from_the_realm_named_by_the_registry(make_registry, registry, login: bool):
    token_server = make_registry()
    tokens(registry, token_server, BASIC if login else "")
    seen = with_login(registry) if login else ask(registry)
    assert (seen.presence, seen.platforms) == ("there", ("linux/amd64",))
    assert {got for _, got in registry.requests} == {"", "Bearer t1"}
    assert len(token_server.requests) == 1


@pytest.mark.parametrize(
    ("status", "token", "presence"),
    [
        (403, "t1", "refused"),
        (503, "t1", "unknown"),
        (200, "", "unknown"),
        (200, "bad\nX: y", "unknown"),
        (200, "t2", "refused"),
    ],
)
def test_failed_token_request_is_refused_or_unknown(make_registry, registry, status: int, token: str, presence: str):
    token_server = make_registry()
    tokens(registry, token_server, BASIC, status, token)
    seen = with_login(registry)
    assert seen.presence == presence
    assert PASSWORD not in seen.why
    assert BASIC not in seen.why


def test_redirected_blob_is_fetched_without_credentials(make_registry, registry):
    store = make_registry(blob=(200, ARM, {}))
    registry.pages["/v2/team/own/manifests/1"] = (200, {**SINGLE, "config": {"digest": digest_of(ARM)}}, {})
    registry.pages = {path: password_wanted(page) for path, page in registry.pages.items()}
    away = (307, {}, {"Location": f"http://{store.address}/v2/team/own/blob"})
    registry.pages[f"/v2/team/own/blobs/{digest_of(ARM)}"] = password_wanted(away)
    assert with_login(registry).platforms == ("linux/arm64",)
    assert store.requests == [("/v2/team/own/blob", "")]


def test_plain_http_to_ipv6_registry_is_rejected_before_sending(registry):
    port = registry.address.partition(":")[2]
    web = RegistryClient(
        ImageName(f"[::1]:{port}", "team/own", "1", ""), RegistryLogin("ann", PASSWORD), 1, _scheme="http"
    )
    with pytest.raises(UnreachableError, match="without TLS"):
        web.get("team/own/manifests/1")
    assert registry.requests == []


def test_registry_on_loopback_is_flagged(registry):
    assert ask(registry).on_loopback


def test_image_is_queried_once_for_repeated_plans(registry):
    environment = Environment.model_validate({"container": {"image": f"{registry.address}/team/own:1"}})
    images = RegistryImages({}, no_credentials)
    assert images(environment) is images(environment)
    assert len(registry.requests) == 2
