"""The SSH key pair in the state home, host key fingerprints, and the TLS certificate for one peer transfer."""

import base64
import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)
from cryptography.x509.oid import NameOID

from cloudgpu import files
from cloudgpu.errors import StateError
from cloudgpu.paths import unwritable_error

_CLOCK_TOLERANCE = timedelta(days=2)
"""Validity before and after creation, because a node's clock may be wrong. The key is discarded after the transfer."""


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate. Trusting the certificate means trusting exactly one key.

    Attributes:
        pem: Certificate in PEM format, for the server and the client.
        key: Private key in PEM format, for the server only.
    """

    pem: str
    key: str = field(repr=False)


def generate_certificate(now: datetime) -> Certificate:
    """Generate a key and a self-signed certificate that is valid for two days before and after `now`."""
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cloudgpu node")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_TOLERANCE)
        .not_valid_after(now + _CLOCK_TOLERANCE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(certificate.public_bytes(Encoding.PEM).decode(), secret.decode())


@dataclass(frozen=True)
class PublicKey:
    """A public key in the format of `authorized_keys`."""

    line: str
    """Key type, key and comment: `ssh-ed25519 AAAA... cloudgpu`."""
    fingerprint: str
    """Fingerprint in the form `SHA256:...`, without padding."""


def fingerprint(blob: bytes) -> str:
    """Return the SHA256 fingerprint of a public key blob in OpenSSH format."""
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode()
    return "SHA256:" + digest.rstrip("=")


def same_fingerprint(pinned: str, shown: str) -> bool:
    """Return True if two fingerprints are equal. Some tools write the base64 padding and others omit it."""
    return pinned.strip().rstrip("=") == shown.strip().rstrip("=")


def ensure_key(path: Path) -> PublicKey:
    """Create the key pair unless it exists, and return the public key. Safe against concurrent processes."""
    if not path.exists():
        _create(path)
    return read_public(path)


def read_public(path: Path) -> PublicKey:
    """Return the public key of the private key in `path`."""
    hint = "to create a new key, move this file elsewhere; nodes created with the old key then become unreachable"
    try:
        private = load_ssh_private_key(files.read_bytes(path, files.KEY_BYTES), password=None)
        line = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    except OSError as err:
        repair = (
            "make yourself the owner of the file with `chown`, and run `chmod 600` on it"
            if isinstance(err, PermissionError)
            else "specify another private key"
        )
        raise StateError(f"cannot read the SSH key {path}: {err.strerror}", hint=repair) from err
    except (ValueError, TypeError, UnsupportedAlgorithm) as err:
        raise StateError(f"{path} is not an OpenSSH private key, or has a passphrase: {err}", hint=hint) from err
    return PublicKey(f"{line} cloudgpu", fingerprint(base64.b64decode(line.split()[1])))


def generate_key_pair() -> tuple[str, str]:
    """Generate a key pair and return the OpenSSH private key and the public key, without storing them."""
    private = Ed25519PrivateKey.generate()
    secret = private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return secret.decode(), private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _create(path: Path) -> None:
    private, line = generate_key_pair()
    secret, public = private.encode(), f"{line} cloudgpu\n".encode()
    try:
        files.make_private_directory(path.parent)
        if _publish(secret, path):
            _publish(public, path.with_name(path.name + ".pub"))
    except OSError as err:
        raise unwritable_error(path, err) from err


def _publish(content: bytes, path: Path) -> bool:
    """Create `path` with this content unless it exists; return True if this call created it.

    Hard-linking a complete temporary file is atomic, so concurrent processes never see a partial key.
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
