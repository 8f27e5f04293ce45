"""Sign requests with SigV4 and the credentials of the node's IAM role."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any

from ..errors import AgentError
from ..instance_metadata import read_metadata

_ROLES = "/latest/meta-data/iam/security-credentials/"
_FRESH_S = 300.0
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class RoleKeys:
    """Temporary credentials for the role. They are secret."""

    access: str
    secret: str
    token: str
    until: float

    def __repr__(self) -> str:
        return "RoleKeys()"


class InstanceRole:
    """The node's IAM role and its current credentials, which `keys` refreshes before they expire."""

    def __init__(self) -> None:
        self._keys: RoleKeys | None = None

    def keys(self) -> RoleKeys:
        """Return credentials. Fetch new ones if the current credentials expire within five minutes."""
        if self._keys is None or self._keys.until - time.time() < _FRESH_S:
            self._keys = _fetch_keys()
        return self._keys


def _fetch_keys() -> RoleKeys:
    hint = "give the nodes an IAM role that may write to checkpoint.to and outputs_to, or remove these settings"
    try:
        name = (read_metadata(_ROLES) or "").split("\n")[0].strip()
        text = read_metadata(_ROLES + name) if name else None
    except OSError as error:
        raise AgentError(
            f"cannot get credentials from the instance metadata service: {error}", hint=hint, code="no-role"
        ) from None
    if not text:
        raise AgentError("this node has no IAM role", hint=hint, code="no-role")
    try:
        return _read(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError):
        # Show neither the text nor the parser's excerpt of it, because either may contain the credentials.
        raise AgentError(
            "the instance metadata service returned malformed credentials", hint=hint, code="no-role"
        ) from None


def _read(document: Any) -> RoleKeys:  # noqa: ANN401 - unchecked JSON
    """Parse the credentials."""
    names = ("AccessKeyId", "SecretAccessKey", "Token")
    access, secret, token = (str(document[name]) if isinstance(document[name], str) else "" for name in names)
    if not all(text.isascii() and text.isprintable() and text for text in (access, secret, token)):
        raise ValueError(names)
    until = datetime.datetime.strptime(document["Expiration"], "%Y-%m-%dT%H:%M:%SZ")  # noqa: DTZ007 - set in the next line
    return RoleKeys(access, secret, token, until.replace(tzinfo=datetime.timezone.utc).timestamp())


def sign_request(
    method: str, url: str, region: str, keys: RoleKeys, body: bytes, headers: dict[str, str]
) -> dict[str, str]:
    """Return the signed headers for an S3 request. The signature covers the body's checksum."""
    parts = urllib.parse.urlsplit(url)
    now = datetime.datetime.now(datetime.timezone.utc)
    stamp, date = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    payload = hashlib.sha256(body).hexdigest()
    signing_headers = {"host": parts.netloc, "x-amz-content-sha256": payload, "x-amz-date": stamp}
    if keys.token:
        signing_headers["x-amz-security-token"] = keys.token
    all_headers = {**{name.lower(): value for name, value in headers.items()}, **signing_headers}
    names = ";".join(sorted(all_headers))
    lines = "".join(f"{name}:{all_headers[name].strip()}\n" for name in sorted(all_headers))
    query = "&".join(sorted(part if "=" in part else f"{part}=" for part in parts.query.split("&") if part))
    canonical = f"{method}\n{parts.path}\n{query}\n{lines}\n{names}\n{payload}"
    scope = f"{date}/{region}/s3/aws4_request"
    text = f"{_ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{keys.secret}".encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    authorization = f"{_ALGORITHM} Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**all_headers, "authorization": authorization}
