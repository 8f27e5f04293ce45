"""Derive the permissions of the nodes' role from the S3 locations in a recipe. Pure."""

from cloudgpu.recipe.schema import Recipe

_S3 = "s3://"


def granted(recipe: Recipe) -> dict[str, str]:
    """Return the program settings: locations separated by commas; an empty value grants nothing.

    Containers need no permissions, because registries are queried with a login that the caller provides.
    """
    mine = [data for data in recipe.data if data.endpoint is None]
    readable = [place for data in mine for place in _place(data.source)]
    writable = [place for data in mine if data.writable for place in _place(data.source)]
    targets = (recipe.checkpoint.to if recipe.checkpoint else None, recipe.outputs_to)
    # What comes after a placeholder is known only when a run has its name.
    places = [place for to in targets for place in _place((to or "").partition("{")[0])]
    return {"readable": ",".join(dict.fromkeys(readable)), "writable": ",".join(dict.fromkeys([*places, *writable]))}


def _place(address: str) -> list[str]:
    """Convert `s3://bucket/prefix` to `bucket/prefix`; nothing for other sources."""
    return [address.removeprefix(_S3)] if address.startswith(_S3) else []
