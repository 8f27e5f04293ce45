"""The storage of a cluster as its record holds it. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # A command that reads records must not pay for the recipe schema.
    from cloudgpu.recipe.schema import Recipe
    from cloudgpu.recipe.storage import Storage

_LONGEST = 30
"""Of a recipe's name for storage, in a name of at most 39 characters that ends with eight of the cluster's own."""


@dataclass(frozen=True)
class AttachedStorage:
    """One piece of storage that a cluster's nodes mount.

    Attributes:
        name: Its own name, by which `cloudgpu storage` knows it.
        called: How the recipe calls it.
        zone: Of a kind that stands in one.
        ends: Whether it goes with the cluster: what is disposable, and, until the cluster stands, whatever was made
            for it.
        id: Of the file system, volume or bucket; empty before it is known.
    """

    name: str
    called: str
    kind: str
    region: str
    zone: str
    to: str
    mode: str
    ends: bool
    id: str = ""


def own_name(one: Storage, token: str) -> str:
    """The name of what a recipe mounts; what ends with its cluster has one that no other cluster's has."""
    if one.make is None or one.keep:
        return one.name
    return f"{one.name[:_LONGEST].rstrip('-')}-{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def lacking(recipe: Recipe, storage: tuple[AttachedStorage, ...]) -> list[str]:
    """What a recipe mounts and a cluster does not, or elsewhere, or in another way."""
    there = {(one.called, one.to, one.mode) for one in storage}
    return [one.name for one in recipe.storage if (one.name, str(one.to), one.mode) not in there]
