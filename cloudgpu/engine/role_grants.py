"""What the nodes' role may do, read from the recipe: its S3 places. Pure."""

from cloudgpu.recipe.schema import Recipe

_S3 = "s3://"


def granted(recipe: Recipe) -> dict[str, str]:
    """Program settings: places separated by commas; a key without a value grants nothing.

    Containers need no grant: every registry is asked with the login that the caller hands over for one call.
    """
    mine = [data for data in recipe.data if data.endpoint is None]
    readable = [place for data in mine for place in _place(data.source)]
    writable = [place for data in mine if data.writable for place in _place(data.source)]
    targets = (recipe.checkpoint.to if recipe.checkpoint else None, recipe.outputs_to)
    # What comes after a placeholder is known only when a run has its name.
    places = [place for to in targets for place in _place((to or "").partition("{")[0])]
    return {"readable": ",".join(dict.fromkeys(readable)), "writable": ",".join(dict.fromkeys([*places, *writable]))}


def _place(address: str) -> list[str]:
    """`s3://bucket/prefix` -> `bucket/prefix`; nothing for what does not lie in S3."""
    return [address.removeprefix(_S3)] if address.startswith(_S3) else []
