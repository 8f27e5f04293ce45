"""Names that cloudgpu makes up: unguessable where they name calls, short where a person types them."""

import re
import secrets

from cloudgpu.errors import UsageError

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
_CLUSTER = re.compile(r"[a-z](?:[a-z0-9-]{0,37}[a-z0-9])?")
"""At most 39 characters: with its prefix and a region it must fit into an IAM role's 64."""


def new_token() -> str:
    """Names all calls of one cluster; 128 bits."""
    return secrets.token_hex(16)


def new_run_id(recipe: str) -> str:
    """`quickstart-k3fz8w`: the recipe's name and six letters that people do not mix up."""
    return f"{recipe[:32]}-{''.join(secrets.choice(_ALPHABET) for _ in range(6))}"


def checked_cluster(name: str) -> str:
    """Refuse a cluster name that cannot stand in AWS names and tags.

    Raises:
        UsageError: It is not 1 to 39 lower case letters, digits and dashes, from a letter to a letter or digit.
    """
    if _CLUSTER.fullmatch(name):
        return name
    message = f"{name!r} cannot name a cluster: 1 to 39 lower case letters, digits and dashes, starting with a letter"
    raise UsageError(message, hint="another name: --name for `up`, --cluster for `train`")


def checked_storage(name: str) -> str:
    """Refuse a storage name that cannot stand in bucket names and tags.

    Raises:
        UsageError: It is not 1 to 39 lower case letters, digits and dashes, from a letter to a letter or digit.
    """
    if _CLUSTER.fullmatch(name):
        return name
    message = f"{name!r} cannot name storage: 1 to 39 lower case letters, digits and dashes, starting with a letter"
    raise UsageError(message, hint="choose another name")
