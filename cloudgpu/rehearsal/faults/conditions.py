"""How the simulated AWS behaves as a whole beside the calls that fail: what is slow, late, short or gone."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

from cloudgpu.decoding import decoded

_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,)}


@dataclass(frozen=True)
class Conditions:
    """What holds now. Everything counts calls, never seconds, unless its name ends in `_s`."""

    unseen_calls: int = 0
    """A new id is unknown to so many calls that name it: eventual consistency."""
    profile_calls: int = 0
    """A new instance profile is unknown to so many launches."""
    terminate_looks: int = 0
    """An instance stays shutting-down until it was described so often."""
    console_calls: int = 0
    """A console is empty for its first so many readers."""
    console_empty: bool = False
    """No console shows anything."""
    calls_per_s: float = 0.0
    """EC2 calls that a region takes in the long run; 0 is without limit."""
    burst: int = 20
    """EC2 calls that it takes at once."""
    clock_skew_s: float = 0.0
    """How far the clock of AWS is ahead of this machine's."""
    fleet_short_by: int = 0
    """A fleet launches so many instances fewer than it must, in spite of its minimum."""
    retired: tuple[str, ...] = ()
    """Instance types that are no more; patterns."""
    free_addresses: Mapping[str, int] = field(default_factory=dict)
    """Free private addresses of a zone's subnets, by pattern."""

    def is_retired(self, instance_type: str) -> bool:
        """Whether this type is no more."""
        return any(fnmatchcase(instance_type, pattern) for pattern in self.retired)

    def addresses_in(self, zone: str) -> int | None:
        """Free addresses in a zone's subnets; None is as many as they have."""
        return min((free for pattern, free in self.free_addresses.items() if fnmatchcase(zone, pattern)), default=None)


def conditions_from(row: Mapping[str, Any]) -> Conditions:
    """Read the `cloud` part of a fault script.

    Raises:
        ValueError: An unknown name, or a value that makes no sense; the message names it.
    """
    if not isinstance(row, Mapping):
        message = "the conditions are not a mapping"
        raise ValueError(message)  # noqa: TRY004 - what callers turn into an answer
    known = {item.name: _name(item.type) for item in fields(Conditions)}
    for name, value in row.items():
        if name not in known:
            message = f"unknown condition {name!r}; known are {', '.join(known)}"
            raise ValueError(message)
        if not _fits(known[name], value):
            message = f"condition {name}: {value!r} makes no sense"
            raise ValueError(message)
    return decoded(Conditions, dict(row))


def _name(kind: Any) -> str:  # noqa: ANN401 - a type, or text for one
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _fits(kind: str, value: object) -> bool:
    if kind in _TYPES:
        return isinstance(value, _TYPES[kind]) and isinstance(value, bool) == (kind == "bool")
    if kind.startswith("tuple"):
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    return isinstance(value, dict) and all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value.values()
    )
