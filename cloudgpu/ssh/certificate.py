"""A TLS certificate for one call, used by both sides and never stored."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_EITHER_WAY = timedelta(days=2)
"""A node's clock may be wrong. Nobody has the key once the call has ended."""


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate, so that trusting it trusts a single key.

    Attributes:
        pem: The certificate, for both sides.
        key: The private key, for the server.
    """

    pem: str
    key: str = field(repr=False)


def fresh_certificate(now: datetime) -> Certificate:
    """Generate a new certificate."""
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cloudgpu node")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EITHER_WAY)
        .not_valid_after(now + _EITHER_WAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(made.public_bytes(Encoding.PEM).decode(), secret.decode())
