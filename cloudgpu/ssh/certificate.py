"""A TLS certificate for a single peer transfer, used by both sides."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

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
