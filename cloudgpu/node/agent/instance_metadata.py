"""Read the instance metadata service, and the notice that AWS will interrupt this spot node."""

from __future__ import annotations

import http.client
import os
import threading
import time
from contextlib import suppress

from .fetch.bounded_http import Client
from .untrusted_data import parse_json_object

_METADATA = "http://169.254.169.254"
_TIMEOUT_S = 5.0
_MOST_BYTES = 1 << 16
_NOT_FOUND = 404
_SPOT_PATH = "/latest/meta-data/spot/instance-action"
_LONGEST_SPOT_VALUE = 40
_SPOT_POLL_S = 5.0
"""Seconds between two looks for a notice, as AWS recommends: "Spot Instance interruption notices", EC2 User Guide."""


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


class SpotNotice:
    """The notice that AWS will interrupt this spot node, which a thread reads from the instance metadata service."""

    def __init__(self, every_s: float = _SPOT_POLL_S) -> None:
        self._every_s = every_s
        self._notice: dict[str, str] | None = None
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def take(self) -> dict[str, str] | None:
        """Return the notice if it was announced since the last call."""
        notice = self._notice
        if notice is not None:  # the thread may set it at any moment
            self._notice = None
        return notice

    def _watch(self) -> None:
        notice = None
        while notice is None:
            with suppress(OSError):  # the service is briefly unavailable at times
                notice = read_spot_notice()
            if notice is None:
                time.sleep(self._every_s)
        self._notice = notice


def read_spot_notice() -> dict[str, str] | None:
    """Return the notice that AWS will interrupt this spot node: `action` and `time`. None if there is none.

    A notice that cannot be understood has empty values: the node is still interrupted.
    """
    text = read_metadata(_SPOT_PATH)
    return None if text is None else parse_spot_notice(text)


def parse_spot_notice(text: str) -> dict[str, str]:
    """Return the `action` and `time` of a notice, each empty if it is not a short string."""
    try:
        notice = parse_json_object(text)
    except ValueError:
        notice = {}
    values = {key: notice.get(key) for key in ("action", "time")}
    return {
        key: value if isinstance(value, str) and len(value) <= _LONGEST_SPOT_VALUE else ""
        for key, value in values.items()
    }
