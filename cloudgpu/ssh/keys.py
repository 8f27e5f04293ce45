"""SSH keys: the home's own key pair, and the fingerprints that host keys are pinned by."""

import base64
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from cloudgpu import files
from cloudgpu.errors import StateError
from cloudgpu.paths import unwritable


@dataclass(frozen=True)
class PublicKey:
    """The public half, as `authorized_keys` and the cloud's key pair want it."""

    line: str
    """`ssh-ed25519 AAAA... cloudgpu`."""
    fingerprint: str
    """`SHA256:...`, without padding."""


def fingerprint(blob: bytes) -> str:
    """The SHA256 fingerprint of a public key blob, written as OpenSSH writes it."""
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode()
    return "SHA256:" + digest.rstrip("=")


def same_fingerprint(pinned: str, shown: str) -> bool:
    """Whether two fingerprints name one key; padding is written by some tools and left out by others."""
    return pinned.strip().rstrip("=") == shown.strip().rstrip("=")


def ensure_key(path: Path) -> PublicKey:
    """The home's key pair, made at the first call. Two processes that both make it end up with the same one.

    Raises:
        StateError: The key cannot be read or written, or the file holds something else.
    """
    if not path.exists():
        _create(path)
    return read_public(path)


def read_public(path: Path) -> PublicKey:
    """The public half of the private key in `path`.

    Raises:
        StateError: The file cannot be read, is no OpenSSH private key, or asks for a passphrase.
    """
    hint = "move the file away: a new key is made, but nodes made with the old one cannot be reached with it"
    try:
        private = load_ssh_private_key(files.read_bytes(path, files.KEY_BYTES), password=None)
        line = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    except OSError as err:
        repair = (
            "make it yours and readable: chmod 600" if isinstance(err, PermissionError) else "name another private key"
        )
        raise StateError(f"cannot read the SSH key {path}: {err.strerror}", hint=repair) from err
    except (ValueError, TypeError, UnsupportedAlgorithm) as err:
        raise StateError(f"{path} is not an OpenSSH private key without a passphrase: {err}", hint=hint) from err
    return PublicKey(f"{line} cloudgpu", fingerprint(base64.b64decode(line.split()[1])))


def fresh_pair() -> tuple[str, str]:
    """A key pair that is kept nowhere: the private half as OpenSSH's file, the public half without a comment."""
    private = Ed25519PrivateKey.generate()
    secret = private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return secret.decode(), private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _create(path: Path) -> None:
    private, line = fresh_pair()
    secret, public = private.encode(), f"{line} cloudgpu\n".encode()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _publish(secret, path):
            _publish(public, path.with_name(path.name + ".pub"))
    except OSError as err:
        raise unwritable(path, err) from err


def _publish(content: bytes, path: Path) -> bool:
    """Give `path` this content unless it exists; True when this call made it.

    The link is what decides between two processes: it either makes the whole file or nothing.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        Path(temporary).unlink()
    return True
