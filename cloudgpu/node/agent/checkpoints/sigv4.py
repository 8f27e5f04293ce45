"""AWS Signature Version 4 for requests to S3."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import urllib.parse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..instance_metadata import RoleKeys

_ALGORITHM = "AWS4-HMAC-SHA256"


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
