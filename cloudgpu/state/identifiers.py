"""Identifiers and secrets: tokens, names, run IDs, the identity of a backend, and the key of a state home."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path
from typing import Final, Protocol

from cloudgpu import files
from cloudgpu.errors import UsageError
from cloudgpu.paths import unwritable_error

_KEY_BYTES: Final = 32
_VALID_NAME = "1 to 39 lowercase letters, digits and dashes, starting with a letter and not ending with a dash"
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
_CLUSTER = re.compile(r"[a-z](?:[a-z0-9-]{0,37}[a-z0-9])?")
"""At most 39 characters, because an IAM role name adds a prefix and the region and is limited to 64 characters."""


class BackendIdentity(Protocol):
    """The target, endpoint and account of a backend, which keep records of different backends apart."""

    @property
    def target(self) -> str:
        """Target as stored in records: `aws`, `rehearsal`, `ssh`, or the name of a third-party backend."""

    @property
    def endpoint(self) -> str:
        """ID that distinguishes rehearsal clouds, which share an account ID; empty for AWS and self-managed hosts."""

    def account(self) -> str:
        """Return the AWS account ID of the credentials in use, or a fixed text for self-managed hosts."""


def derive_secret(key: Path, purpose: str) -> bytes:
    """Derive a secret for one purpose from the key in this file, which is created on first use."""
    return hmac.new(_ensure_key(key), purpose.encode(), hashlib.sha256).digest()


def _ensure_key(key: Path) -> bytes:
    """Return the key, creating it on first use."""
    try:
        with contextlib.suppress(FileExistsError):
            files.make_private_directory(key.parent)
            # Write the key to a temporary file first, so that no other process reads an incomplete key.
            made = key.with_name(f".{key.name}.{os.getpid()}")
            files.create(made, secrets.token_bytes(_KEY_BYTES))
            try:
                os.link(made, key)
            finally:
                made.unlink()
        return files.read_bytes(key, files.KEY_BYTES)
    except OSError as err:
        raise unwritable_error(key, err) from err


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
