"""A fingerprint of what will be carried out."""

import hashlib
import json

from cloudgpu.recipe.plain import plain
from cloudgpu.recipe.schema import Recipe


def digest(recipe: Recipe) -> str:
    """SHA-256 of a resolved recipe, hexadecimal.

    The order of mappings does not count and neither do fields that have their default, so a new optional field in a
    later version leaves old digests as they are.
    """
    canonical = json.dumps(plain(recipe), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
