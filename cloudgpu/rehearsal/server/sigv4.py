"""Access keys of a rehearsal cloud, and the verification of AWS Signature Version 4 and S3's older signatures.

The keys are random for each state home, so that no other user or web page can call its API.
"""

import base64
import hashlib
import hmac
import os
import posixpath
import re
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote

from cloudgpu import bounds
from cloudgpu.decoding import MALFORMED
from cloudgpu.errors import NewerFormatError, StateError
from cloudgpu.paths import unwritable_error
from cloudgpu.rehearsal.layout import DocumentFormat, write_durably
from cloudgpu.rehearsal.server.http_message import HttpRequest
from cloudgpu.text import command

_ALGORITHM = "AWS4-HMAC-SHA256"
_PAYLOAD = "x-amz-content-sha256"
_SKEW = timedelta(minutes=15)
_MAX_PRESIGNED_S = 7 * 24 * 3600
_S3_SUBRESOURCES = re.compile(
    r"(acl|accelerate|analytics|cors|delete|inventory|lifecycle|location|logging|metrics|notification|partNumber|policy"
    r"|requestPayment|restore|tagging|torrent|uploadId|uploads|versionId|versioning|versions|website|response-[a-z-]+)"
)

SecretOf = Callable[[str], str | None]
_FORMAT: Final = DocumentFormat("access keys")
_KEY_ID = re.compile(r"AKIA[A-Z2-7]{16}")


@dataclass(frozen=True)
class Scope:
    """The scope of a signature: access key, region and service."""

    access_key_id: str
    region: str
    service: str


class SignatureError(Exception):
    """The request is not correctly signed with a key of this state home. `code` is an AWS error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def verify(request: HttpRequest, secret_of: SecretOf, now: datetime) -> Scope:
    """Verify the signature of a request and return its scope."""
    if request.headers.find("authorization"):
        return _verify_header(request, secret_of, now, whole=True)
    return _verify_query(request, secret_of, now)


def verify_head(request: HttpRequest, secret_of: SecretOf, now: datetime) -> Scope:
    """Verify a request whose body has not been read; S3 signatures cover at most a digest of the body."""
    in_header = bool(request.headers.find("authorization"))
    query = request.query()
    is_s3 = query.get("X-Amz-Credential", "").endswith("/s3/aws4_request")
    if not request.headers.find(_PAYLOAD) if in_header else "X-Amz-Signature" in query and not is_s3:
        raise SignatureError("RequestEntityTooLarge", "The request body exceeds the size limit of this service.")
    if in_header:
        return _verify_header(request, secret_of, now, whole=False)
    return _verify_query(request, secret_of, now)


def _verify_query(request: HttpRequest, secret_of: SecretOf, now: datetime) -> Scope:
    query = request.query()
    if "X-Amz-Signature" in query:
        return _verify_presigned(request, query, secret_of, now)
    if "Signature" in query and "AWSAccessKeyId" in query:
        return _verify_s3_query(request, query, secret_of, now)
    raise SignatureError("MissingAuthenticationToken", "Request is missing Authentication Token")


def _verify_header(request: HttpRequest, secret_of: SecretOf, now: datetime, *, whole: bool) -> Scope:
    fields = _authorization(request.headers.find("authorization"))
    scope, date = _scope(fields["Credential"])
    stamp = request.headers.find("x-amz-date")
    if abs(now - _parse_time(stamp)) > _SKEW:
        raise _skewed(scope, stamp, now)
    payload = request.headers.find(_PAYLOAD) or hashlib.sha256(request.body).hexdigest()
    if whole and _is_digest(payload) and payload != hashlib.sha256(request.body).hexdigest():
        raise SignatureError(
            "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' does not match the body."
        )
    canonical = _canonical(request, request.raw_query, fields["SignedHeaders"], payload, scope.service)
    _check_signature(_signature(_secret(scope, secret_of), stamp, date, scope, canonical), fields["Signature"])
    return scope


def _skewed(scope: Scope, stamp: str, now: datetime) -> SignatureError:
    """Return the service-specific error for a request whose time is too far from the server's clock."""
    if scope.service == "s3":
        text = "The difference between the request time and the current time is too large."
        return SignatureError("RequestTimeTooSkewed", text)
    if scope.service == "ec2":
        return SignatureError("RequestExpired", "Request has expired.")
    text = f"Signature expired or not yet current: {stamp} is not within 15 min. of {now:%Y%m%dT%H%M%SZ}"
    return SignatureError("SignatureDoesNotMatch", text)


def _verify_presigned(request: HttpRequest, query: dict[str, str], secret_of: SecretOf, now: datetime) -> Scope:
    if query.get("X-Amz-Algorithm") != _ALGORITHM:
        raise SignatureError("AuthorizationQueryParametersError", f'X-Amz-Algorithm only supports "{_ALGORITHM}"')
    scope, date = _scope(query.get("X-Amz-Credential", ""))
    stamp = query.get("X-Amz-Date", "")
    expires = _seconds(query.get("X-Amz-Expires", "900"))
    _check_validity_period(_parse_time(stamp), timedelta(seconds=expires), now)
    unsigned = "&".join(part for part in request.raw_query.split("&") if not part.startswith("X-Amz-Signature="))
    payload = "UNSIGNED-PAYLOAD" if scope.service == "s3" else hashlib.sha256(request.body).hexdigest()
    canonical = _canonical(request, unsigned, query.get("X-Amz-SignedHeaders", ""), payload, scope.service)
    _check_signature(_signature(_secret(scope, secret_of), stamp, date, scope, canonical), query["X-Amz-Signature"])
    return scope


def _check_validity_period(signed_at: datetime, lifetime: timedelta, now: datetime) -> None:
    # Compare differences, because adding to a date in year 1 or 9999 may overflow.
    if signed_at - now > _SKEW or now - signed_at > lifetime:
        raise SignatureError("AccessDenied", "Request has expired")


def _verify_s3_query(request: HttpRequest, query: dict[str, str], secret_of: SecretOf, now: datetime) -> Scope:
    """Verify the HMAC-SHA1 signature that SDKs still use in presigned S3 URLs for older regions."""
    scope = Scope(query["AWSAccessKeyId"], "us-east-1", "s3")
    if now.timestamp() > _seconds(query.get("Expires", "0"), longest=1 << 40):
        raise SignatureError("AccessDenied", "Request has expired")
    text = "\n".join(
        [
            request.method,
            request.headers.find("content-md5"),
            request.headers.find("content-type"),
            query.get("Expires", ""),
            _amz_headers(request) + _s3_resource(request),
        ]
    )
    digest = hmac.new(_secret(scope, secret_of).encode(), text.encode(), hashlib.sha1).digest()
    _check_signature(base64.b64encode(digest).decode(), query["Signature"])
    return scope


def _amz_headers(request: HttpRequest) -> str:
    fields = sorted((n.lower(), v.strip()) for n, v in request.headers.items() if n.lower().startswith("x-amz-"))
    query = sorted((n.lower(), v) for n, v in request.query().items() if n.lower().startswith("x-amz-"))
    return "".join(f"{name}:{value}\n" for name, value in sorted(fields + query))


def _s3_resource(request: HttpRequest) -> str:
    subresources = sorted(
        (n, v) for n, v in parse_qsl(request.raw_query, keep_blank_values=True) if _S3_SUBRESOURCES.fullmatch(n)
    )
    suffix = "&".join(f"{name}={value}" if value else name for name, value in subresources)
    return request.raw_path + (f"?{suffix}" if suffix else "")


def _authorization(value: str) -> dict[str, str]:
    algorithm, _, rest = value.partition(" ")
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    if algorithm != _ALGORITHM or not {"Credential", "SignedHeaders", "Signature"} <= set(fields):
        raise SignatureError("IncompleteSignature", "Authorization header is not a complete AWS4-HMAC-SHA256 header")
    return fields


def _scope(credential: str) -> tuple[Scope, str]:
    parts = credential.rsplit("/", 4)
    if len(parts) != 5 or parts[4] != "aws4_request":  # noqa: PLR2004 - id, date, region, service, terminator
        raise SignatureError("IncompleteSignature", "Credential must have exactly 5 slash-delimited elements")
    return Scope(parts[0], parts[2], parts[3].lower()), parts[1]


def _parse_time(stamp: str) -> datetime:
    try:
        return datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise SignatureError("IncompleteSignature", "Date must be in ISO-8601 basic format") from None


def _seconds(text: str, *, longest: int = _MAX_PRESIGNED_S) -> int:
    try:
        return bounds.parse_whole_number(text, most=longest)
    except ValueError:
        message = "X-Amz-Expires must be less than a week (in seconds)"
        raise SignatureError("AuthorizationQueryParametersError", message) from None


def _secret(scope: Scope, secret_of: SecretOf) -> str:
    secret = secret_of(scope.access_key_id)
    if secret is None:
        code = {"ec2": "AuthFailure", "s3": "InvalidAccessKeyId"}.get(scope.service, "InvalidClientTokenId")
        raise SignatureError(code, "The access key does not belong to this rehearsal cloud.")
    return secret


def _is_digest(payload: str) -> bool:
    return len(payload) == 64 and all(letter in "0123456789abcdef" for letter in payload)  # noqa: PLR2004 - SHA-256


def _canonical(request: HttpRequest, raw_query: str, signed: str, payload: str, service: str) -> str:
    names = signed.split(";")
    if "host" not in names:
        raise SignatureError("SignatureDoesNotMatch", "'Host' must be a 'SignedHeader'")
    fields = "".join(f"{name}:{' '.join(request.headers.find(name).split())}\n" for name in names)
    path = request.raw_path if service == "s3" else _twice_encoded(request.raw_path)
    return "\n".join([request.method, path, _canonical_query(raw_query), fields, signed, payload])


def _twice_encoded(raw_path: str) -> str:
    normal = posixpath.normpath(raw_path)
    slash = "/" if raw_path.endswith("/") and normal != "/" else ""
    return quote(f"/{normal.lstrip('/')}{slash}", safe="/~")


def _canonical_query(raw_query: str) -> str:
    pairs = parse_qsl(raw_query, keep_blank_values=True)
    return "&".join(f"{name}={value}" for name, value in sorted((_encode(n), _encode(v)) for n, v in pairs))


def _encode(text: str) -> str:
    return quote(text, safe="-_.~")


def _signature(secret: str, stamp: str, date: str, scope: Scope, canonical: str) -> str:
    terms = f"{date}/{scope.region}/{scope.service}/aws4_request"
    text = "\n".join([_ALGORITHM, stamp, terms, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secret}".encode()
    for part in (date, scope.region, scope.service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _check_signature(expected: str, received: str) -> None:
    if not hmac.compare_digest(expected.encode(), received.encode()):
        raise SignatureError(
            "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided."
        )


@dataclass(frozen=True)
class AccessKey:
    """An access key, whose id and secret have AWS's format."""

    access_key_id: str
    secret_access_key: str = field(repr=False)


@dataclass(frozen=True)
class Keyring:
    """One state home's access keys: `caller` is the user's, and nodes get `role` from the metadata service."""

    caller: AccessKey
    role: AccessKey

    def secret_of(self, access_key_id: str) -> str | None:
        """Return the secret of this access key id, or None if the id is unknown."""
        for key in (self.caller, self.role):
            if secrets.compare_digest(key.access_key_id.encode(), access_key_id.encode()):
                return key.secret_access_key
        return None


def load_or_create(path: Path) -> Keyring:
    """Read the state home's keys, creating them if necessary. Concurrent callers get the same keys."""
    if not os.path.lexists(path):
        _create(path)
    return load(path)


def load(path: Path) -> Keyring:
    """Read the state home's keys."""
    try:
        row = _FORMAT.read(path)
        return Keyring(_key(row["caller"]), _key(row["role"]))
    except (OSError, *MALFORMED) as err:
        message = f"cannot read the rehearsal keys in {path}: {err}"
        raise StateError(
            message, hint=f"reset the rehearsal cloud: {command('cloudgpu', 'rehearsal', 'reset')}"
        ) from err


def repair(path: Path, known_id: str) -> Keyring:
    """Read the state home's keys, replacing them if they are damaged.

    The caller must make sure that no server is running, because a running server would keep using its old keys. Cluster
    records identify this cloud by the user's access key id, so the new key keeps `known_id` if it is a valid ID.

    Args:
        path: The key file.
        known_id: The user's access key id according to the cluster records, or an empty string.
    """
    try:
        return load_or_create(path)
    except NewerFormatError:
        raise  # these keys are not damaged
    except StateError:
        caller = _random_key()
        if _KEY_ID.fullmatch(known_id):
            caller = AccessKey(known_id, caller.secret_access_key)
        keyring = Keyring(caller, _random_key())
        write(path, keyring)
        return keyring


def _create(path: Path) -> None:
    """Write the keys to a temporary file and hard-link it, so that the first of several concurrent callers wins."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    write(draft, Keyring(_random_key(), _random_key()))
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    except OSError as err:
        raise unwritable_error(path, err) from err
    finally:
        draft.unlink(missing_ok=True)


def _key(row: dict[str, str]) -> AccessKey:
    key = AccessKey(**row)
    if not all(isinstance(text, str) and text for text in asdict(key).values()):
        message = "an access key's id or secret is empty or not a string"
        raise ValueError(message)
    return key


def write(path: Path, keyring: Keyring) -> None:
    """Write the keys, replacing an existing file."""
    write_durably(path, _FORMAT.encode(asdict(keyring)))


def _random_key() -> AccessKey:
    letters = base64.b32encode(secrets.token_bytes(10)).decode()
    return AccessKey(f"AKIA{letters}", base64.b64encode(secrets.token_bytes(30)).decode())
