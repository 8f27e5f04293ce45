"""Faults of the simulated AWS: rules that act on single API calls, and conditions that act on all of them.

The active rules and conditions, with their counters, are kept in memory.
"""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Literal

from cloudgpu.clock import Clock
from cloudgpu.decoding import decode_as

_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,)}
Phase = Literal["before", "after_effect"]
_KEYS = frozenset(
    (
        "id",
        "action",
        "service",
        "match",
        "times",
        "nth",
        "mutating",
        "phase",
        "do",
        "code",
        "message",
        "http",
        "seconds",
    )
) | {"drop"}
_FREEING = re.compile("Delete|Terminate|Detach|Disassociate|Revoke|Remove|Release|Cancel|Deregister|Abort|Untag")
_EFFECTS = ("error", "drop", "hold", "delay", "die", "lag")
"""`lag`: tag searches do not find resources that were first tagged less than `seconds` ago."""


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


@dataclass(frozen=True)
class MatchedCall:
    """An API call that is matched against rules. `facts` contains parameters of the call, such as `zone`."""

    service: str
    action: str
    region: str
    mutating: bool
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def releases_resources(self) -> bool:
        """Whether the call releases resources. Such calls are accepted even when the disk is full."""
        return bool(_FREEING.match(self.action))


@dataclass
class FaultRule:
    """A fault rule. `nth` limits the fault to the nth matching call, counted from 1 since the rule became active."""

    id: str
    action: str = "*"
    service: str = "*"
    match: Mapping[str, str] = field(default_factory=dict)
    times: int | None = None
    nth: int | None = None
    mutating: bool | None = None
    phase: Phase = "before"
    do: str = "error"
    code: str = "InternalError"
    message: str = "An internal error has occurred"
    http: int = 500
    seconds: float = 0.0
    drop: bool = False
    """With `hold`: drop the connection when the call is released, instead of continuing."""
    seen: int = 0
    fired: int = 0

    def applies(self, call: MatchedCall, phase: Phase) -> bool:
        """Count the call if it matches the rule. Return True if the fault applies to this call."""
        if phase != self.phase or not self._matches(call):
            return False
        self.seen += 1
        if self.nth is not None and self.seen != self.nth:
            return False
        if self.times is not None and self.fired >= self.times:
            return False
        self.fired += 1
        return True

    def _matches(self, call: MatchedCall) -> bool:
        if self.mutating is not None and self.mutating != call.mutating:
            return False
        if not (fnmatchcase(call.action, self.action) and fnmatchcase(call.service, self.service)):
            return False
        facts = {"region": call.region, **call.facts}
        return all(fnmatchcase(facts.get(name, ""), pattern) for name, pattern in self.match.items())


def rule_from(row: Mapping[str, Any], position: int) -> FaultRule:
    """Parse one rule of a fault script."""
    if not isinstance(row, Mapping):
        message = f"fault rule {position} is not a mapping"
        raise ValueError(message)  # noqa: TRY004 - callers turn it into an HTTP response
    unknown = sorted(str(name) for name in set(row) - _KEYS)
    if unknown:
        message = f"fault rule {position}: unknown key {unknown[0]!r}"
        raise ValueError(message)
    if row.get("do", "error") not in _EFFECTS or row.get("phase", "before") not in ("before", "after_effect"):
        effects = ", ".join(_EFFECTS)
        message = f"fault rule {position}: `do` must be one of {effects}, and `phase` must be before or after_effect"
        raise ValueError(message)
    try:
        return decode_as(FaultRule, {"id": f"rule-{position}", **row})
    except ValueError as err:
        message = f"fault rule {position}: {err}"
        raise ValueError(message) from err


class FaultRules:
    """The active fault rules and their counters. They are kept in memory, so a restarted server has no rules."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._rules: list[FaultRule] = []
        self._held: dict[int, dict[str, str]] = {}
        self._next_hold = 0
        self._released = 0
        self._calls = 0
        self._mutating = 0

    def put(self, rows: list[Mapping[str, Any]]) -> None:
        """Replace the rules, reset all counters and release held calls."""
        rules = [rule_from(row, position) for position, row in enumerate(rows)]
        with self._change:
            self._rules = rules
            self._calls = self._mutating = 0
            self._release_held()

    def find(self, call: MatchedCall, phase: Phase) -> FaultRule | None:
        """Return the rule to apply to the call in this phase, or None. `lag` rules are excluded.

        The call is counted once, in the phase `before`. If several rules apply, only the first of these rules takes
        effect, but all of them count the call as a match.
        """
        with self._change:
            if phase == "before":
                self._calls += 1
                self._mutating += call.mutating
            applicable = [rule for rule in self._rules if rule.do != "lag" and rule.applies(call, phase)]
            return applicable[0] if applicable else None

    def lag_s(self, call: MatchedCall) -> float:
        """Return the age in seconds below which tag searches do not find tags, or 0 if no `lag` rule applies.

        Every matching `lag` rule counts the call.
        """
        with self._change:
            return max(
                (rule.seconds for rule in self._rules if rule.do == "lag" and rule.applies(call, "before")), default=0
            )

    def hold(self, rule: FaultRule, call: MatchedCall, *, limit_s: float = 600.0) -> None:
        """Block the calling thread until `release` is called, but for at most `limit_s` seconds."""
        with self._change:
            ticket = self._next_hold
            self._next_hold += 1
            self._held[ticket] = {"rule": rule.id, "action": call.action, "region": call.region, "phase": rule.phase}
            self._change.notify_all()
            self._change.wait_for(lambda: ticket < self._released, timeout=limit_s)
            del self._held[ticket]

    def release(self) -> int:
        """Release every held call and return their number."""
        with self._change:
            count = len(self._held)
            self._release_held()
            return count

    def _release_held(self) -> None:
        self._released = self._next_hold
        self._change.notify_all()

    def shown(self) -> dict[str, Any]:
        """Return the rules with their counters, the held calls, and the number of calls since the rules were set."""
        with self._change:
            rules = [
                {"id": rule.id, "action": rule.action, "do": rule.do, "phase": rule.phase, "seen": rule.seen,
                 "fired": rule.fired}
                for rule in self._rules
            ]  # fmt: skip
            held = list(self._held.values())
            return {"rules": rules, "held": held, "calls": self._calls, "mutating_calls": self._mutating}


class ActiveConditions:
    """The active conditions and their counters, which the API rules query and update. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self.put(Conditions())

    def put(self, now: Conditions) -> None:
        """Replace the conditions and reset all counters."""
        with self._lock:
            self.now = now
            self.since = self._clock.now()
            self.times_applied = 0
            self._left: dict[tuple[str, str], int] = {}
            self._left["start", ""] = now.failed_starts
            self._tokens: dict[str, tuple[float, float]] = {}

    def skewed_now(self) -> datetime:
        """Return the current time of the simulated AWS, in UTC."""
        return self._clock.now() + timedelta(seconds=self.now.clock_skew_s)

    def made(self, resource_id: str) -> None:
        """Register a new resource by ID or name.

        `unseen` then returns True for the next `unseen_calls` calls that refer to it, and `unseen_in_launch` for the
        next `unseen_launches` fleet launches.
        """
        with self._lock:
            if self.now.unseen_calls:
                self._left["id", resource_id] = self.now.unseen_calls
            if self.now.unseen_launches:
                self._left["launch", resource_id] = self.now.unseen_launches

    def unseen(self, resource_id: str) -> bool:
        """Count a call that refers to this resource. Return True if the call must not find the resource yet."""
        return self._spent("id", resource_id)

    def unseen_in_launch(self, name: str) -> bool:
        """Count a fleet launch that refers to this resource. Return True if the launch must not find it yet."""
        return self._spent("launch", name)

    def is_profile_unknown(self, profile_id: str, made: datetime) -> bool:
        """Count a launch with this instance profile. Return True if EC2 does not find the profile yet.

        Profiles that were created before the conditions became active are always found.
        """
        if not self.now.profile_calls or made < self.since:
            return False
        with self._lock:
            self._left.setdefault(("profile", profile_id), self.now.profile_calls)
        return self._spent("profile", profile_id)

    def is_console_empty(self, instance_id: str) -> bool:
        """Count a read of this console. Return True if the console is still empty."""
        if self.now.console_empty:
            self.count_affected_call()
            return True
        if not self.now.console_calls:
            return False
        with self._lock:
            self._left.setdefault(("console", instance_id), self.now.console_calls)
        return self._spent("console", instance_id)

    def failure_at_start(self) -> str:
        """Count an instance that starts. Return the code of the reason why it must not start, or an empty string."""
        return self.now.start_reason if self._spent("start", "") else ""

    def should_throttle(self, region: str) -> bool:
        """Take one token from the region's token bucket. Return True if the bucket is empty."""
        rate, burst = self.now.calls_per_s, float(self.now.burst)
        if not rate:
            return False
        with self._lock:
            now_s = self._clock.monotonic()
            tokens, last = self._tokens.get(region, (burst, now_s))
            tokens = min(burst, tokens + (now_s - last) * rate)
            throttled = tokens < 1
            self._tokens[region] = (tokens if throttled else tokens - 1, now_s)
            self.times_applied += throttled
        return throttled

    def count_affected_call(self) -> None:
        """Count one call that a condition affected."""
        with self._lock:
            self.times_applied += 1

    def _spent(self, kind: str, name: str) -> bool:
        """Decrement the count of calls that a condition still affects for a resource. Return False if none was left."""
        with self._lock:
            left = self._left.get((kind, name), 0)
            if left:
                self._left[kind, name] = left - 1
                self.times_applied += 1
        return left > 0


class SkewedClock:
    """A clock whose `now` returns the time of the simulated AWS. All other methods use the machine's clock."""

    def __init__(self, clock: Clock, behaviour: ActiveConditions) -> None:
        self._clock = clock
        self._behaviour = behaviour

    def now(self) -> datetime:
        """Return the current time of the simulated AWS, in UTC."""
        return self._behaviour.skewed_now()

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point."""
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for this many seconds."""
        self._clock.sleep(seconds)
