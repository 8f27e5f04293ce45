"""Fuzz targets for responses of image registries and web servers: challenges, manifests, redirects and sizes."""

from typing import Any

from cloudgpu.app.planning import image_check
from cloudgpu.app.planning.image_check import _described
from cloudgpu.app.planning.registry_http import (
    RegistryClient,
    RegistryDeniedError,
    SourceResponse,
    UnreachableError,
    parse_challenge,
)
from cloudgpu.app.runs import datasets
from cloudgpu.errors import CloudGpuError
from cloudgpu.launch.containers import parse_image_name
from cloudgpu.node.agent.fetch import bounded_http
from tests.unit.fuzz.conformity import conforms
from tests.unit.fuzz.hostile import files, spoiled_text, values, words
from tests.unit.fuzz.target import Target

_INDEX = {
    "schemaVersion": 2,
    "manifests": [{"digest": "sha256:1", "platform": {"os": "linux", "architecture": "amd64"}, "size": 5}],
}
_MANIFEST = {"schemaVersion": 2, "config": {"digest": "sha256:0", "size": 5}, "layers": [{"size": 10}, {"size": 20}]}


def _challenge(text: str) -> None:
    found = parse_challenge(text)
    assert found is None or found.scheme in ("bearer", "basic")


class _FakeWeb(RegistryClient):
    def __init__(self, body: bytes) -> None:
        super().__init__(parse_image_name("registry.example/a:1"), None, 1.0)
        self._body = body

    def get(self, path: str, accept: str = "*/*") -> SourceResponse:
        return SourceResponse(200, {}, self._body)


def _manifest(body: bytes) -> None:
    seen = _described("registry.example/a:1", parse_image_name("registry.example/a:1"), _FakeWeb(body))
    conforms(type(seen), seen)
    assert seen.packed_bytes is None or seen.packed_bytes >= 0


def _index(value: Any) -> None:
    if isinstance(value, dict):
        conforms(dict[str, str], image_check.digests_by_platform(value))
        size = image_check.packed_bytes(value)
        assert size is None or (conforms(int, size) and size >= 0)
        conforms(str, image_check.config_digest(value))


def _web_file(text: str) -> None:
    for status, header in ((206, "content-range"), (416, "content-range"), (200, "content-length")):
        size = datasets._size_of_response(bounded_http.SourceResponse(status, {header: text}, b""))
        assert size is None or 0 <= size < 1 << 63


def _followed(location: str) -> None:
    """A registry may redirect to any host."""

    class Redirecting(RegistryClient):
        def _sent(self, url: str, accept: str, authorization: str, *, guarded: bool) -> SourceResponse:
            if url.startswith("https://registry.example/v2/"):
                return SourceResponse(302, {"location": location}, b"")
            return super()._sent("ftp:" + url, accept, authorization, guarded=guarded)

    Redirecting(parse_image_name("registry.example/a:1"), None, 1.0).get("a")


def _image_name(text: str) -> None:
    found = parse_image_name(text)
    assert found.registry
    assert isinstance(found.on_loopback, bool)
    assert isinstance(found.repository + found.server, str)


TARGETS = (
    Target(
        "registry challenge",
        spoiled_text('Bearer realm="https://a/b",service="s",scope="c", Basic realm=x'),
        _challenge,
    ),
    Target(
        "registry manifest", files(_MANIFEST, _INDEX), _manifest, (CloudGpuError, RegistryDeniedError, UnreachableError)
    ),
    Target("registry index", values(_INDEX, _MANIFEST), _index),
    Target(
        "registry redirect",
        words("https://registry.example/v2/a", "/v2/a", "http://[::1"),
        _followed,
        (RegistryDeniedError, UnreachableError),
    ),
    Target("size of a web file", words("bytes 0-0/12345", "bytes */0", "12345"), _web_file),
    Target("image name", words("nvcr.io/nvidia/pytorch:24.12-py3", "ubuntu", "a/b@sha256:" + "0" * 64), _image_name),
)
