"""Signed control calls. The key is never sent, so an unrelated process on a reused port cannot learn it."""

import hashlib
import hmac
import http.client
import time
from typing import Any

from cloudgpu.files import parse_json

HEADER = "X-Cloudgpu-Seal"
_TOLERANCE_S = 300.0
_SHOWN_CHARACTERS = 300


def sign_call(secret: str, method: str, target: str, body: bytes, *, at: float | None = None) -> str:
    """Return the value of a control call's signature header; `at` is Unix time in seconds."""
    stamp = f"{time.time() if at is None else at:.3f}"
    text = b"\n".join([stamp.encode(), method.encode(), target.encode(), hashlib.sha256(body).hexdigest().encode()])
    return f"{stamp}:{hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()}"


def signature_is_valid(secret: str, value: str, method: str, target: str, body: bytes) -> bool:
    """Return True if the header was computed from `secret` for exactly this call, with a recent timestamp."""
    stamp, _, _ = value.partition(":")
    try:
        at = float(stamp)
    except ValueError:
        return False
    fresh = abs(time.time() - at) <= _TOLERANCE_S
    return fresh and hmac.compare_digest(sign_call(secret, method, target, body, at=at).encode(), value.encode())


def exchange(address: str, secret: str, method: str, target: str, body: bytes, limit_s: float) -> tuple[int, Any]:
    """Send one control call, and return the status and the JSON of the response, or its text as an `error`."""
    connection = http.client.HTTPConnection(address, timeout=limit_s)
    try:
        headers = {HEADER: sign_call(secret, method, target, body), "Content-Type": "application/json"}
        connection.request(method, target, body=body or None, headers=headers)
        response = connection.getresponse()
        content = response.read()
        try:
            return response.status, parse_json(content)
        except ValueError:
            return response.status, {"error": content.decode(errors="replace").strip()[:_SHOWN_CHARACTERS]}
    finally:
        connection.close()
