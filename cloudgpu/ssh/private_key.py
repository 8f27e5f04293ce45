"""Load the private key for a login, and the certificate beside it."""

import io
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    SSHCertificateType,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_identity,
)

from cloudgpu.errors import SshSetupError
from cloudgpu.files import KEY_BYTES, read_bytes, read_text
from cloudgpu.text import command, printable

_ANOTHER_KEY = "use another private key: set CLOUDGPU_SSH_KEY, or `key` in the inventory for self-managed hosts"
_UNLIMITED = 2**64 - 1
"""`valid_before` of a certificate without an expiry."""
_SHOWN_PRINCIPALS = 5
_KEY_CLASSES: dict[type, Any] = {
    RSAPrivateKey: paramiko.RSAKey,
    Ed25519PrivateKey: paramiko.Ed25519Key,
    EllipticCurvePrivateKey: paramiko.ECDSAKey,
}


@dataclass(frozen=True)
class LoginKey:
    """A private key, and the certificate `-cert.pub` beside it if there is one.

    Attributes:
        attempts: The key with its certificate and the key alone, in the order in which they are tried. As with OpenSSH,
            a server that rejects the certificate may still accept the key.
        certificate: Path of the certificate, or None.
        problem: Why the certificate cannot be used; empty if nothing is known to be wrong with it.
    """

    attempts: tuple[paramiko.PKey, ...]
    certificate: Path | None = None
    problem: str = ""

    @property
    def refused_text(self) -> str:
        """What to add to `refused the key`."""
        if self.certificate is None:
            return ""
        return f", and its certificate {self.certificate}{f', which {self.problem}' if self.problem else ''}"

    @property
    def renewal_hint(self) -> str:
        """What to do about the certificate; empty if there is none."""
        if self.certificate is None:
            return ""
        look = command("ssh-keygen", "-L", "-f", str(self.certificate))
        return f"renew the certificate (`{look}` shows it), or authorize the key itself; "


def load_login_key(path: Path, user: str, now: datetime) -> LoginKey:
    """Load a key and its certificate for a login as this user."""
    try:
        content = read_bytes(path, KEY_BYTES)
        plain = _private_key(content)
    except OSError as err:
        raise SshSetupError(f"cannot read the SSH key {path}: {err.strerror}", hint=_ANOTHER_KEY) from err
    except (ValueError, TypeError, UnsupportedAlgorithm, paramiko.SSHException) as err:
        message = f"{path} is not an SSH private key, or has a passphrase: {err}"
        raise SshSetupError(message, hint=_ANOTHER_KEY) from err
    certificate = path.with_name(f"{path.name}-cert.pub")
    if not certificate.exists():
        return LoginKey((plain,))
    try:
        text = read_text(certificate, KEY_BYTES)
        found = load_ssh_public_identity(text.strip().encode())
        certified = _private_key(content)
        certified.load_certificate(text)
    except OSError as err:
        return LoginKey((plain,), certificate, f"cannot be read: {err.strerror}")
    except (ValueError, TypeError, UnsupportedAlgorithm, paramiko.SSHException):
        return LoginKey((plain,), certificate, "is not an OpenSSH certificate for this key")
    if not isinstance(found, SSHCertificate) or not _certifies(found, plain):
        return LoginKey((plain,), certificate, "is not an OpenSSH certificate for this key")
    invalid = _time_problem(found, now)
    problem = invalid or _principal_problem(found, user)
    return LoginKey((plain, certified) if invalid else (certified, plain), certificate, problem)


def _private_key(content: bytes) -> paramiko.PKey:
    """Parse a key. Unlike `PKey.from_path`, this does not read further files."""
    try:
        loaded: object = load_ssh_private_key(content, password=None)
    except ValueError:
        loaded = load_pem_private_key(content, password=None)
    key_class = next((known for base, known in _KEY_CLASSES.items() if isinstance(loaded, base)), None)
    if key_class is None:
        message = f"keys of type {type(loaded).__name__} are not supported"
        raise ValueError(message)
    return key_class.from_private_key(io.StringIO(content.decode()))


def _certifies(certificate: SSHCertificate, key: paramiko.PKey) -> bool:
    line = certificate.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return certificate.type is SSHCertificateType.USER and line.split()[1] == key.get_base64()


def _time_problem(certificate: SSHCertificate, now: datetime) -> str:
    at = now.timestamp()
    if at < certificate.valid_after:
        return f"is not valid before {_time(certificate.valid_after)}"
    if certificate.valid_before != _UNLIMITED and at >= certificate.valid_before:
        return f"expired at {_time(certificate.valid_before)}"
    return ""


def _time(epoch_s: int) -> str:
    try:
        return f"{datetime.fromtimestamp(epoch_s, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return f"second {epoch_s}"


def _principal_problem(certificate: SSHCertificate, user: str) -> str:
    """Return the principals if they do not contain the user. The server may still map them to this user."""
    names = [printable(name.decode("utf-8", "replace")) for name in certificate.valid_principals]
    if not names or user in names:
        return ""
    others = f" and {len(names) - _SHOWN_PRINCIPALS} more" if len(names) > _SHOWN_PRINCIPALS else ""
    return f"is only for {', '.join(names[:_SHOWN_PRINCIPALS])}{others}"
