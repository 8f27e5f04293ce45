"""What the metadata service tells a spot node that AWS wants back."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

SPOT_END = "AWS took the spot instance back"
"""The reason of such an end, as events and records have it."""

_META = "/latest/meta-data"
_FORM = "%Y-%m-%dT%H:%M:%SZ"


def interruption(end_epoch_s: float) -> Mapping[str, str]:
    """Path and text of an interruption notice."""
    moment = datetime.fromtimestamp(end_epoch_s, UTC).strftime(_FORM)
    return {
        f"{_META}/spot/instance-action": json.dumps({"action": "terminate", "time": moment}),
        f"{_META}/spot/termination-time": moment,
    }


def rebalance(at_epoch_s: float) -> Mapping[str, str]:
    """Path and text of a rebalance recommendation."""
    moment = datetime.fromtimestamp(at_epoch_s, UTC).strftime(_FORM)
    return {f"{_META}/events/recommendations/rebalance": json.dumps({"noticeTime": moment})}


def standing(spot_end_epoch_s: float, rebalance_epoch_s: float) -> Mapping[str, str]:
    """The entries of a node that was told these things; 0 means that it was not."""
    found: dict[str, str] = {}
    if spot_end_epoch_s:
        found |= interruption(spot_end_epoch_s)
    if rebalance_epoch_s:
        found |= rebalance(rebalance_epoch_s)
    return found
