"""Conditions of the simulated AWS as a whole: delays, throttling, clock skew and missing capacity."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

from cloudgpu.decoding import decode_as

_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,)}


@dataclass(frozen=True)
class Conditions:
    """The conditions of a fault script. Fields named `*_calls` or `*_looks` are numbers of API calls."""

    unseen_calls: int = 0
    """Number of calls that do not find a new resource yet (eventual consistency)."""
    unseen_launches: int = 0
    """Number of fleet launches that do not find a new resource that their launch template or override names."""
    profile_calls: int = 0
    """Number of launches that do not find a new instance profile yet."""
    terminate_looks: int = 0
    """Number of describe calls that show a terminated instance as `shutting-down`."""
    console_calls: int = 0
    """Number of reads of an instance's console that return no output yet."""
    console_empty: bool = False
    """Whether all consoles stay empty."""
    calls_per_s: float = 0.0
    """Maximum sustained rate of EC2 calls in a region, in calls per second; 0 means no limit."""
    burst: int = 20
    """Number of EC2 calls that a region accepts in a burst."""
    clock_skew_s: float = 0.0
    """Seconds by which AWS's clock is ahead of this machine's clock."""
    fleet_short_by: int = 0
    """Number of instances that a fleet fails to launch despite free capacity, even if fewer than its minimum remain."""
    failed_starts: int = 0
    """Number of instances that terminate instead of starting, with the state reason `start_reason`."""
    start_reason: str = "Server.InternalError"
    """Code of the state reason of instances that do not start, as EC2's `StateReason` lists them."""
    retired: tuple[str, ...] = ()
    """Patterns of instance types that AWS no longer offers."""
    free_addresses: Mapping[str, int] = field(default_factory=dict)
    """Zone pattern -> maximum number of free private addresses in each subnet of a matching zone."""

    absent_service_roles: tuple[str, ...] = ()
    """Services, such as `spot.amazonaws.com`, whose service-linked roles the account lacks."""

    def is_retired(self, instance_type: str) -> bool:
        """Return True if AWS no longer offers this instance type."""
        return any(fnmatchcase(instance_type, pattern) for pattern in self.retired)

    def addresses_in(self, zone: str) -> int | None:
        """Return the maximum number of free addresses in each subnet of a zone, or None if there is no limit."""
        return min((free for pattern, free in self.free_addresses.items() if fnmatchcase(zone, pattern)), default=None)


def conditions_from(row: Mapping[str, Any]) -> Conditions:
    """Parse the `cloud` part of a fault script."""
    if not isinstance(row, Mapping):
        message = "the `cloud` conditions must be a mapping"
        raise ValueError(message)  # noqa: TRY004 - callers turn it into an HTTP response
    known = {item.name: _type_name(item.type) for item in fields(Conditions)}
    for name, value in row.items():
        if name not in known:
            message = f"unknown condition {name!r}; choose from {', '.join(known)}"
            raise ValueError(message)
        if not _fits(known[name], value):
            message = f"condition {name}: {value!r} is not valid"
            raise ValueError(message)
    return decode_as(Conditions, dict(row))


def _type_name(annotation: Any) -> str:  # noqa: ANN401 - a type, or its name
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _fits(type_name: str, value: object) -> bool:
    if type_name in _TYPES:
        return isinstance(value, _TYPES[type_name]) and isinstance(value, bool) == (type_name == "bool")
    if type_name.startswith("tuple"):
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if type_name == "str":
        return isinstance(value, str)
    return isinstance(value, dict) and all(
        isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value.values()
    )
