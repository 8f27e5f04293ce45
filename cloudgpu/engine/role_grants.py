"""Derive the permissions of the nodes' role from the S3 locations in a recipe."""

from cloudgpu.recipe.schema import Recipe

_S3 = "s3://"


def role_grant_settings(recipe: Recipe) -> dict[str, str]:
    """Return the program settings `readable` and `writable`: comma-separated locations, or empty to grant nothing.

    Pulling container images needs no permissions, because the caller provides the nodes' registry credentials.
    """
    in_aws = [data for data in recipe.data if data.endpoint is None]
    readable = [location for data in in_aws for location in _location(data.source)]
    writable = [location for data in in_aws if data.writable for location in _location(data.source)]
    targets = (recipe.checkpoint.to if recipe.checkpoint else None, recipe.outputs_to)
    # Grant access to the prefix before the first placeholder, because placeholders are resolved only when a run starts.
    results = [location for to in targets for location in _location((to or "").partition("{")[0])]
    return {"readable": ",".join(dict.fromkeys(readable)), "writable": ",".join(dict.fromkeys([*results, *writable]))}


def _location(address: str) -> list[str]:
    """Return `bucket/prefix` for the address `s3://bucket/prefix`, or an empty list for other addresses."""
    return [address.removeprefix(_S3)] if address.startswith(_S3) else []
