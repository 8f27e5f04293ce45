"""Digest of a resolved recipe, which identifies what a run executes."""

import hashlib
import json

from cloudgpu.recipe.plain_values import to_plain_values
from cloudgpu.recipe.schema import Recipe


def digest(recipe: Recipe) -> str:
    """Return the SHA-256 digest of a resolved recipe in hexadecimal.

    The order of mappings is ignored, and so are fields with their default value. A later version can therefore add
    optional fields without changing existing digests.
    """
    canonical = json.dumps(
        to_plain_values(recipe), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()
