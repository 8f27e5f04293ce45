"""Read OCI and Docker manifests: an index of manifests by platform, or a single manifest."""

from collections.abc import Mapping
from typing import Any, Final

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
