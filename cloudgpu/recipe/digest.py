"""Digest of a resolved recipe, which identifies what a run executes."""

import hashlib
import json

from cloudgpu.recipe.plain_values import plain
from cloudgpu.recipe.schema import Recipe


def digest(recipe: Recipe) -> str:
    """Return the SHA-256 of a resolved recipe in hexadecimal.

    The order of mappings and fields that have their default are ignored, so adding an optional field in a later version
    does not change existing digests.
    """
    canonical = json.dumps(plain(recipe), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
