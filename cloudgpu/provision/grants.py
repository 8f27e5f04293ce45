"""What the nodes' role may do, read from the recipe: its S3 places, its registry. Pure."""

import re

from cloudgpu.recipe.schema import Recipe

_S3 = "s3://"
_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?/([^:@]+)")


def granted(recipe: Recipe) -> dict[str, str]:
    """Program settings: places and repositories separated by commas; a key without a value grants nothing."""
    mine = [data for data in recipe.data if data.endpoint is None]
    readable = [place for data in mine for place in _place(data.source)]
    writable = [place for data in mine if data.writable for place in _place(data.source)]
    kept = (recipe.checkpoint.to if recipe.checkpoint else None, recipe.outputs_to)
    # What comes after a placeholder is known only when a run has its name.
    places = [place for to in kept for place in _place((to or "").partition("{")[0])]
    image = recipe.environment.container.image if recipe.environment.container else ""
    return {
        "readable": ",".join(dict.fromkeys(readable)),
        "writable": ",".join(dict.fromkeys([*places, *writable])),
        "repositories": ",".join(_repository(image)),
    }


def _place(address: str) -> list[str]:
    """`s3://bucket/prefix` -> `bucket/prefix`; nothing for what does not lie in S3."""
    return [address.removeprefix(_S3)] if address.startswith(_S3) else []


def _repository(image: str) -> list[str]:
    """The ARN of the ECR repository that an image comes from; nothing for other registries."""
    found = _ECR.match(image)
    if found is None:
        return []
    account, region, china, name = found.groups()
    partition = "aws-cn" if china else "aws"
    return [f"arn:{partition}:ecr:{region}:{account}:repository/{name}"]
