"""Client tokens: the same call again gets the first answer; another call under the same token is refused."""

import hashlib
import json
from typing import Any

from cloudgpu.rehearsal.aws_api.rules import AwsError
from cloudgpu.rehearsal.state.records import Records, SavedAnswer

_KEPT = 5000

Key = tuple[str, str, str]


def key_of(action: str, params: dict[str, Any]) -> Key | None:
    """What an idempotent call is known by; tokens of a zonal launch are separate in every zone."""
    token = str(params.get("ClientToken") or "")
    if not token or params.get("DryRun"):
        return None
    zone = ""
    if action == "RunInstances":
        placement = params.get("Placement") or {}
        zone = str(placement.get("AvailabilityZone") or params.get("SubnetId") or "")
    return action, token, zone


def digest_of(params: dict[str, Any]) -> str:
    """A digest of everything but the token."""
    rest = {name: value for name, value in params.items() if name != "ClientToken"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, default=str).encode()).hexdigest()


def replay(records: Records, key: Key, digest: str) -> SavedAnswer | None:
    """The first answer, or None for a new token.

    Raises:
        AwsError: The token was used with other parameters.
    """
    saved = records.answers.get(key)
    if saved is not None and saved.digest != digest:
        raise AwsError(
            "IdempotentParameterMismatch",
            "The client token you have provided is associated with a resource that was created with other parameters.",
        )
    return saved


def keep(records: Records, key: Key, answer: SavedAnswer) -> None:
    """Remember an answer; the oldest go when there are very many."""
    records.answers[key] = answer
    while len(records.answers) > _KEPT:
        del records.answers[next(iter(records.answers))]
