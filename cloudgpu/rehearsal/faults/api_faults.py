"""Fault rules: make API calls fail, wait or lose the connection, delay tag searches, or kill the server."""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from cloudgpu.decoding import decode_as

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
