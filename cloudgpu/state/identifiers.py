"""Generate identifiers: unguessable tokens for API calls, and short IDs for people to type."""

import re
import secrets

from cloudgpu.errors import UsageError

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
_CLUSTER = re.compile(r"[a-z](?:[a-z0-9-]{0,37}[a-z0-9])?")
"""At most 39 characters: with its prefix and a region it must fit into an IAM role's 64."""


def new_token() -> str:
    """Return a random 128-bit token that identifies all API calls for one cluster."""
    return secrets.token_hex(16)


def new_run_id(recipe: str) -> str:
    """Return a run ID such as `quickstart-k3fz8w`: the recipe name and six unambiguous characters."""
    return f"{recipe[:32]}-{''.join(secrets.choice(_ALPHABET) for _ in range(6))}"


def checked_cluster(name: str) -> str:
    """Reject a cluster name that is invalid in AWS names and tags.

    Raises:
        UsageError: It is not 1 to 39 lower case letters, digits and dashes, from a letter to a letter or digit.
    """
    if _CLUSTER.fullmatch(name):
        return name
    message = f"{name!r} cannot name a cluster: 1 to 39 lower case letters, digits and dashes, starting with a letter"
    raise UsageError(message, hint="another name: --name for `up`, --cluster for `train`")


def checked_storage(name: str) -> str:
    """Reject a storage name that is invalid in bucket names and tags.

    Raises:
        UsageError: It is not 1 to 39 lower case letters, digits and dashes, from a letter to a letter or digit.
    """
    if _CLUSTER.fullmatch(name):
        return name
    message = f"{name!r} cannot name storage: 1 to 39 lower case letters, digits and dashes, starting with a letter"
    raise UsageError(message, hint="choose another name")
