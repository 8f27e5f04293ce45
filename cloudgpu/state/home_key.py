"""The secret of a state home, from which service tokens and the signatures of saved plans are derived."""

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from cloudgpu import files
from cloudgpu.paths import unwritable_error

_KEY_BYTES: Final = 32


def derive(key: Path, purpose: str) -> bytes:
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
