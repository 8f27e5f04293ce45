"""Read the instance metadata service, which also provides the credentials of the node's IAM role."""

from __future__ import annotations

import datetime
import http.client
import json
import os
import time
from dataclasses import dataclass
from typing import Any

from .errors import AgentError
from .fetch.http_request import Client

_METADATA = "http://169.254.169.254"
_ROLES = "/latest/meta-data/iam/security-credentials/"
_TIMEOUT_S = 5.0
_FRESH_S = 300.0
_MOST_BYTES = 1 << 16
_NOT_FOUND = 404


def read_metadata(path: str) -> str | None:
    """Return a metadata document, or None if it does not exist.

    Raises:
        OSError: The metadata service does not respond or returns an error.
    """
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
        """Return credentials. Fetch new ones if the current credentials expire within five minutes.

        Raises:
            AgentError: The node has no role, or the metadata service does not provide valid credentials.
        """
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
    """Parse the credentials.

    Raises:
        ValueError: A value is empty, not a string or not printable ASCII, or the expiration is not a time.
        KeyError: A value is missing.
        TypeError: The document is not an object, or the expiration is not a string.
    """
    names = ("AccessKeyId", "SecretAccessKey", "Token")
    access, secret, token = (str(document[name]) if isinstance(document[name], str) else "" for name in names)
    if not all(text.isascii() and text.isprintable() and text for text in (access, secret, token)):
        raise ValueError(names)
    until = datetime.datetime.strptime(document["Expiration"], "%Y-%m-%dT%H:%M:%SZ")  # noqa: DTZ007 - set in the next line
    return RoleKeys(access, secret, token, until.replace(tzinfo=datetime.timezone.utc).timestamp())
