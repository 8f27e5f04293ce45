"""Metadata entries for a spot node that is about to be interrupted."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

SPOT_RECLAIM_REASON = "AWS took the spot instance back"
"""Reason for a spot interruption in events and records. Servers recognize interruptions by this exact text."""

_META = "/latest/meta-data"
_FORM = "%Y-%m-%dT%H:%M:%SZ"


def interruption_entries(end_epoch_s: float) -> Mapping[str, str]:
    """Return the metadata entries for an interruption notice, by path."""
    timestamp = datetime.fromtimestamp(end_epoch_s, UTC).strftime(_FORM)
    return {
        f"{_META}/spot/instance-action": json.dumps({"action": "terminate", "time": timestamp}),
        f"{_META}/spot/termination-time": timestamp,
    }


def rebalance_entries(at_epoch_s: float) -> Mapping[str, str]:
    """Return the metadata entry for a rebalance recommendation, by path."""
    timestamp = datetime.fromtimestamp(at_epoch_s, UTC).strftime(_FORM)
    return {f"{_META}/events/recommendations/rebalance": json.dumps({"noticeTime": timestamp})}


def notice_entries(spot_end_epoch_s: float, rebalance_epoch_s: float) -> Mapping[str, str]:
    """Return the metadata entries for all notices, by path. A time of 0 means that there is no such notice."""
    notices: dict[str, str] = {}
    if spot_end_epoch_s:
        notices |= interruption_entries(spot_end_epoch_s)
    if rebalance_epoch_s:
        notices |= rebalance_entries(rebalance_epoch_s)
    return notices
