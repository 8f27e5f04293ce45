"""Read the instance metadata service."""

from __future__ import annotations

import http.client
import os

from .fetch.http_request import Client

_METADATA = "http://169.254.169.254"
_TIMEOUT_S = 5.0
_MOST_BYTES = 1 << 16
_NOT_FOUND = 404


def read_metadata(path: str) -> str | None:
    """Return a metadata document, or None if it does not exist."""
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "").rstrip("/") or _METADATA
    # The metadata service is link-local: a proxy would return another machine's metadata.
    client = Client(_TIMEOUT_S, _MOST_BYTES, proxies=False)
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    token = _get(client, f"{base}/latest/api/token", headers, method="PUT")
    if token is None:
        return None
    return _get(client, base + path, {"X-aws-ec2-metadata-token": token.strip()})


def _get(client: Client, url: str, headers: dict[str, str], method: str = "GET") -> str | None:
    try:
        answer = client.send(url, headers, method=method, guarded=False)
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"invalid HTTP response ({type(error).__name__})") from None
    if answer.status == _NOT_FOUND:
        return None
    if answer.status != http.client.OK:
        raise OSError(f"the metadata service returned status {answer.status}")
    return answer.body.decode("utf-8", "replace")
