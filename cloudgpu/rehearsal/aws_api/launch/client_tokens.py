"""Client tokens: a repeated call returns the first response, and a different call with the same token is rejected."""

import hashlib
import json
from typing import Any

from cloudgpu.rehearsal.aws_api.rules import AwsError
from cloudgpu.rehearsal.state.records import Records, SavedAnswer

_MAX_SAVED = 5000

Key = tuple[str, str, str]


def response_key(action: str, params: dict[str, Any]) -> Key | None:
    """Return the key under which a call's response is saved, or None for dry runs and calls without a client token.

    As on AWS, the same token may be used for launches in different zones.
    """
    token = str(params.get("ClientToken") or "")
    if not token or params.get("DryRun"):
        return None
    zone = ""
    if action == "RunInstances":
        placement = params.get("Placement") or {}
        zone = str(placement.get("AvailabilityZone") or params.get("SubnetId") or "")
    return action, token, zone


def parameters_digest(params: dict[str, Any]) -> str:
    """Return a digest of all parameters except the client token."""
    rest = {name: value for name, value in params.items() if name != "ClientToken"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, default=str).encode()).hexdigest()


def find_saved_response(records: Records, key: Key, digest: str) -> SavedAnswer | None:
    """Return the saved response of the first call with this token, or None for a new token."""
    saved = records.answers.get(key)
    if saved is not None and saved.digest != digest:
        raise AwsError(
            "IdempotentParameterMismatch",
            "The client token you have provided is associated with a resource that was created with other parameters.",
        )
    return saved


def save_response(records: Records, key: Key, answer: SavedAnswer) -> None:
    """Save a response. Delete the oldest saved responses if there are more than the maximum."""
    records.answers[key] = answer
    while len(records.answers) > _MAX_SAVED:
        del records.answers[next(iter(records.answers))]
