"""Generate identifiers: unguessable tokens for API calls, and short IDs for people to type."""

import re
import secrets

from cloudgpu.errors import UsageError

_VALID_NAME = "1 to 39 lowercase letters, digits and dashes, starting with a letter and not ending with a dash"
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
_CLUSTER = re.compile(r"[a-z](?:[a-z0-9-]{0,37}[a-z0-9])?")
"""At most 39 characters, because an IAM role name adds a prefix and the region and is limited to 64 characters."""


def new_token() -> str:
    """Return a random 128-bit token, as hexadecimal digits, that identifies one cluster or storage resource."""
    return secrets.token_hex(16)


def new_run_id(recipe: str) -> str:
    """Return a run ID such as `quickstart-k3fz8w`: up to 32 characters of the recipe name and six random ones."""
    return f"{recipe[:32]}-{''.join(secrets.choice(_ALPHABET) for _ in range(6))}"


def require_cluster_name(name: str) -> str:
    """Return a cluster name if it is valid in AWS names and tags."""
    if _CLUSTER.fullmatch(name):
        return name
    message = f"{name!r} is not a valid cluster name: it must be {_VALID_NAME}"
    raise UsageError(message, hint="choose another name: `--name` for `up`, `--cluster` for `train`")


def require_storage_name(name: str) -> str:
    """Return a storage name if it is valid in bucket names and tags."""
    if _CLUSTER.fullmatch(name):
        return name
    message = f"{name!r} is not a valid storage name: it must be {_VALID_NAME}"
    raise UsageError(message, hint="choose another name")
