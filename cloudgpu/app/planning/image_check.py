"""Look up a recipe's image in its registry, from the caller's machine, before anything is launched."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from cloudgpu.app.planning.registry_http import (
    CERTIFICATES,
    RegistryClient,
    RegistryDeniedError,
    UnreachableError,
    json_body,
)
from cloudgpu.errors import CloudGpuError
from cloudgpu.launch.containers import ImageName, parse_image_name
from cloudgpu.node.agent.fetch.bounded_http import SourceResponse
from cloudgpu.plan.named_resources import ImageSeen
from cloudgpu.recipe.schema import Environment
from cloudgpu.run.registry_logins import FetchLogin, RegistryLogin, registry_login

ACCEPTED_MEDIA_TYPES: Final = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
NODE_PLATFORM: Final = "linux/amd64"
"""Platform of the nodes. The image size is looked up for this platform."""
_LARGEST: Final = 2**50
"""One pebibyte. A larger size is treated as invalid."""
_LONGEST_NAME: Final = 40
_WITHIN_S: Final = 5.0


def digests_by_platform(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each platform in an index, excluding attestations."""
    digests: dict[str, str] = {}
    for manifest in _dicts(content.get("manifests")):
        name = platform(manifest.get("platform"))
        if name and isinstance(manifest.get("digest"), str):
            digests.setdefault(name, manifest["digest"])
    return digests


def platform(content: object) -> str:
    """Return `os/architecture`, for example `linux/amd64`; empty if either is missing or invalid."""
    if not isinstance(content, Mapping):
        return ""
    parts = [content.get("os"), content.get("architecture")]
    valid = all(
        isinstance(part, str) and part.isalnum() and part.isascii() and len(part) <= _LONGEST_NAME and part != "unknown"
        for part in parts
    )
    return "/".join(map(str, parts)) if valid else ""


def is_index(content: Mapping[str, Any]) -> bool:
    """Return True if the content is an index, which lists manifests, rather than a single manifest."""
    return isinstance(content.get("manifests"), list)


def packed_bytes(manifest: Mapping[str, Any]) -> int | None:
    """Return the total compressed size of the layers, or None if the manifest does not contain valid sizes."""
    sizes = [layer.get("size") for layer in _dicts(manifest.get("layers"))]
    # `type` instead of `isinstance`, because bool is a subclass of int.
    known = [size for size in sizes if type(size) is int and 0 <= size <= _LARGEST]
    return sum(known) if known and len(known) == len(sizes) and sum(known) <= _LARGEST else None


def config_digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of the image configuration, or an empty string."""
    config = manifest.get("config")
    digest = config.get("digest") if isinstance(config, Mapping) else None
    return digest if isinstance(digest, str) else ""


def _dicts(listed: object) -> list[Mapping[str, Any]]:
    return [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []


class RegistryImages:
    """Implements `preflight.AskRegistry`. Each image is looked up once."""

    def __init__(
        self,
        environ: Mapping[str, str],
        fetch: FetchLogin,
        *,
        within_s: float = _WITHIN_S,
        certificates: Path = CERTIFICATES,
    ) -> None:
        self._environ, self._fetch = environ, fetch
        self._within_s, self._certificates = within_s, certificates
        self._known: dict[tuple[str, ...], ImageSeen] = {}

    def __call__(self, environment: Environment) -> ImageSeen:
        """Look up the image for at most `within_s` seconds. If the lookup fails, return `unknown` with the reason."""
        container = environment.container
        if container is None:
            return ImageSeen("", "unknown", "the recipe has no container")
        key = (container.image, container.login or "", container.password or "", *environment.secrets)
        if key not in self._known:
            seen = self._within_time(container.image, environment)
            self._known[key] = replace(seen, on_loopback=parse_image_name(container.image).on_loopback)
        return self._known[key]

    def _within_time(self, image: str, environment: Environment) -> ImageSeen:
        """Look up the image in a thread, because socket timeouts do not limit name resolution."""
        results: list[ImageSeen] = []
        thread = threading.Thread(target=lambda: results.append(self._look_up(image, environment)), daemon=True)
        thread.start()
        thread.join(self._within_s)
        timed_out = f"{parse_image_name(image).registry} did not respond within {self._within_s:g} s"
        return results[0] if results else ImageSeen(image, "unknown", timed_out)

    def _look_up(self, image: str, environment: Environment) -> ImageSeen:
        try:
            login, why = registry_login(environment, self._environ, self._fetch), ""
        except CloudGpuError as error:
            # Public images can be looked up without a login.
            login, why = None, error.message
        name = parse_image_name(image)
        try:
            return _described(image, name, RegistryClient(name, login, self._within_s, self._certificates))
        except RegistryDeniedError:
            return ImageSeen(image, "unknown", why) if why else _refused(image, name, login)
        except UnreachableError as error:
            return ImageSeen(image, "unknown", str(error))


def _described(image: str, name: ImageName, client: RegistryClient) -> ImageSeen:
    if name.digest:
        response = client.get_by_digest("manifests", name.digest, ACCEPTED_MEDIA_TYPES)
    else:
        response = client.get(f"{name.path}/manifests/{name.tag}", ACCEPTED_MEDIA_TYPES)
    if response.status == HTTPStatus.NOT_FOUND and _is_registry(response):
        return ImageSeen(image, "missing", f"image {image} does not exist in {name.registry}")
    top = _manifest(response, name)
    if not is_index(top):
        return ImageSeen(image, "there", "", _platforms(top, client), packed_bytes(top))
    digests = digests_by_platform(top)
    digest = digests.get(NODE_PLATFORM)
    return ImageSeen(image, "there", "", tuple(sorted(digests)), _size(digest, name, client) if digest else None)


def _refused(image: str, name: ImageName, login: RegistryLogin | None) -> ImageSeen:
    """Describe a denied request. To hide private names, most registries also deny access to nonexistent images."""
    credentials = "without a login" if login is None else f"for {login.user}"
    cause = "the image does not exist or requires a different login"
    why = f"{name.registry} denies access to {image} {credentials}: {cause}"
    return ImageSeen(image, "refused", why)


def _is_registry(response: SourceResponse) -> bool:
    """Return True if a 404 comes from a registry rather than from a proxy or an ordinary web server."""
    content = json_body(response)
    errors = content.get("errors") if isinstance(content, dict) else None
    return bool(errors) or "docker-distribution-api-version" in response.headers


def _manifest(response: SourceResponse, name: ImageName) -> dict[str, Any]:
    content = json_body(response)
    if response.status == HTTPStatus.TOO_MANY_REQUESTS:
        raise UnreachableError(f"{name.registry} responded with status 429 (too many requests); try again later")
    if response.status != HTTPStatus.OK:
        raise UnreachableError(f"{name.registry} returned status {response.status}")
    if not isinstance(content, dict) or not {"manifests", "config", "schemaVersion"} & set(content):
        raise UnreachableError(f"{name.registry} returned something other than a manifest")
    return content


def _platforms(manifest: dict[str, Any], client: RegistryClient) -> tuple[str, ...]:
    """Return the platform from the image's configuration; empty if the registry does not return it."""
    digest = config_digest(manifest)
    try:
        response = client.get_by_digest("blobs", digest) if digest else None
    except (RegistryDeniedError, UnreachableError):
        return ()
    found = platform(json_body(response)) if response is not None and response.status == HTTPStatus.OK else ""
    return (found,) if found else ()


def _size(digest: str, name: ImageName, client: RegistryClient) -> int | None:
    try:
        response = client.get_by_digest("manifests", digest, ACCEPTED_MEDIA_TYPES)
        return packed_bytes(_manifest(response, name))
    except (RegistryDeniedError, UnreachableError):
        return None
