"""What a registry sends for a tag, OCI's and Docker's: an index of manifests by platform, or one manifest."""

from collections.abc import Mapping
from typing import Any, Final

ACCEPTED: Final = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
MACHINE: Final = "linux/amd64"
"""Whose size is looked up: the nodes' own."""
_LARGEST: Final = 2**50
"""A pebibyte: no image is larger, and no disk."""
_LONGEST_NAME: Final = 40


def by_platform(content: Mapping[str, Any]) -> dict[str, str]:
    """Platform -> digest of an index; attestations, which run nowhere, are left out."""
    found: dict[str, str] = {}
    for one in _dicts(content.get("manifests")):
        name = platform(one.get("platform"))
        if name and isinstance(one.get("digest"), str):
            found.setdefault(name, one["digest"])
    return found


def platform(said: object) -> str:
    """`linux/amd64` of whatever has `os` and `architecture`; empty where they are not told."""
    if not isinstance(said, Mapping):
        return ""
    parts = [said.get("os"), said.get("architecture")]
    told = all(
        isinstance(part, str) and part.isalnum() and part.isascii() and len(part) <= _LONGEST_NAME and part != "unknown"
        for part in parts
    )
    return "/".join(map(str, parts)) if told else ""


def is_index(content: Mapping[str, Any]) -> bool:
    """Whether it lists manifests and is none itself."""
    return isinstance(content.get("manifests"), list)


def packed_bytes(manifest: Mapping[str, Any]) -> int | None:
    """Sum of the layers as they are pulled; None where it does not tell."""
    sizes = [one.get("size") for one in _dicts(manifest.get("layers"))]
    # In Python, true is a number.
    known = [size for size in sizes if type(size) is int and 0 <= size <= _LARGEST]
    return sum(known) if known and len(known) == len(sizes) and sum(known) <= _LARGEST else None


def config_digest(manifest: Mapping[str, Any]) -> str:
    """Of what tells the platform; empty where there is none."""
    config = manifest.get("config")
    digest = config.get("digest") if isinstance(config, Mapping) else None
    return digest if isinstance(digest, str) else ""


def _dicts(listed: object) -> list[Mapping[str, Any]]:
    return [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
