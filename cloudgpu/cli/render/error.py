"""An error as text and as JSON, and the line for a damaged record."""

import re
from collections.abc import Mapping
from typing import Any

from cloudgpu.errors import CloudGpuError, HostKeyError, NoCapacityError

UNREADABLE = "its record cannot be read"
_ATTEMPT = re.compile(r"(\S+ \S+ \S+: [^:()]+ \([\w.]+\)): ")

# Look up these attributes by name: a check for error classes of other packages would have to import the packages.
_LISTS = ("problems", "findings", "tried", "left", "tail", "reasons")


def error_json(err: CloudGpuError) -> dict[str, Any]:
    """Return the documented `--json` form of an error, with the partial result of the command."""
    return {
        **failure_json(type(err).__name__, err.message, err.hint, err.exit_code, details(err)),
        **err.partial_result,
    }


def failure_json(kind: str, message: str, hint: str, exit_code: int, about: list[str]) -> dict[str, Any]:
    """Return the `--json` form of a failure, also for failures without a `CloudGpuError`, such as Ctrl-C."""
    return {"error": {"type": kind, "message": message, "hint": hint, "exit_code": exit_code, "details": about}}


def details(err: CloudGpuError) -> list[str]:
    """Return the full details of an error: its problems, findings, failed candidates, leftovers or output."""
    if isinstance(err, HostKeyError):
        return _fingerprints(err)
    return [str(detail) for name in _LISTS for detail in getattr(err, name, ())]


def detail_lines(err: CloudGpuError) -> list[str]:
    """Return the details for the terminal, except those that repeat the message or its end.

    A failed candidate is shortened to its location, type, market and error code.
    """
    if isinstance(err, NoCapacityError):
        return [short_attempt(detail) for detail in err.tried]
    if isinstance(err, HostKeyError):
        return [detail for detail in details(err) if detail.partition(" ")[2] not in err.message]
    return [detail for detail in details(err) if not (detail.strip() and err.message.endswith(detail.strip()))]


def short_attempt(tried: str) -> str:
    """Shorten a failed attempt to `us-east-1a g4dn.xlarge on-demand: no capacity (InsufficientInstanceCapacity)`."""
    match = _ATTEMPT.match(tried)
    return match[1] if match else tried


def _fingerprints(err: HostKeyError) -> list[str]:
    got = [f"got {err.got}"] if err.got else []
    return [*(f"expected {detail}" for detail in err.expected), *got]


def damaged_line(name: str, reasons: Mapping[str, str]) -> str:
    """Return the line for a record that cannot be read."""
    return f"{name}  unknown: {reasons.get(name) or UNREADABLE}"
