"""Scripted faults: which API call is refused, delayed, held or cut, before or after its effect, or does not see yet."""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from cloudgpu.decoding import decoded

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
_DEEDS = ("error", "drop", "hold", "delay", "die", "lag")
"""`lag`: a search by tag does not find what is younger than `seconds`; the others say what they do."""


@dataclass(frozen=True)
class ApiCall:
    """What a rule looks at. `facts` holds `zone`, `instance_type` and the like where they are known."""

    service: str
    action: str
    region: str
    mutating: bool
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def frees(self) -> bool:
        """Whether it gives resources up; such calls are carried out on a full disk too."""
        return bool(_FREEING.match(self.action))


@dataclass
class Rule:
    """One fault. `nth` counts the calls that this rule matches since the rules were put, from 1."""

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
    """With `hold`: cut the connection instead of going on after the release."""
    seen: int = 0
    fired: int = 0

    def applies(self, call: ApiCall, phase: Phase) -> bool:
        """Count the call where it matches, and say whether the fault happens now."""
        if phase != self.phase or not self._matches(call):
            return False
        self.seen += 1
        if self.nth is not None and self.seen != self.nth:
            return False
        if self.times is not None and self.fired >= self.times:
            return False
        self.fired += 1
        return True

    def _matches(self, call: ApiCall) -> bool:
        if self.mutating is not None and self.mutating != call.mutating:
            return False
        if not (fnmatchcase(call.action, self.action) and fnmatchcase(call.service, self.service)):
            return False
        facts = {"region": call.region, **call.facts}
        return all(fnmatchcase(facts.get(name, ""), pattern) for name, pattern in self.match.items())


def rule_from(row: Mapping[str, Any], position: int) -> Rule:
    """Read one rule of a fault script.

    Raises:
        ValueError: An unknown key or deed; the message names it.
    """
    if not isinstance(row, Mapping):
        message = f"fault rule {position} is not a mapping"
        raise ValueError(message)  # noqa: TRY004 - what callers turn into an answer
    unknown = sorted(str(name) for name in set(row) - _KEYS)
    if unknown:
        message = f"fault rule {position}: unknown key {unknown[0]!r}"
        raise ValueError(message)
    if row.get("do", "error") not in _DEEDS or row.get("phase", "before") not in ("before", "after_effect"):
        message = f"fault rule {position}: `do` is one of {', '.join(_DEEDS)}; `phase` is before or after_effect"
        raise ValueError(message)
    try:
        return decoded(Rule, {"id": f"rule-{position}", **row})
    except ValueError as err:
        message = f"fault rule {position}: {err}"
        raise ValueError(message) from err


class FaultScript:
    """The rules in force. Counters live in memory: a restarted server has no faults."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._rules: list[Rule] = []
        self._held: dict[int, dict[str, str]] = {}
        self._next_hold = 0
        self._released = 0
        self._calls = 0
        self._mutating = 0

    def put(self, rows: list[Mapping[str, Any]]) -> None:
        """Replace the rules and start counting afresh; held calls are let go.

        Raises:
            ValueError: A rule makes no sense.
        """
        rules = [rule_from(row, position) for position, row in enumerate(rows)]
        with self._change:
            self._rules = rules
            self._calls = self._mutating = 0
            self._let_go()

    def find(self, call: ApiCall, phase: Phase) -> Rule | None:
        """The first rule that strikes this call in this phase."""
        with self._change:
            if phase == "before":
                self._calls += 1
                self._mutating += call.mutating
            struck = [rule for rule in self._rules if rule.do != "lag" and rule.applies(call, phase)]
            return struck[0] if struck else None

    def lag_s(self, call: ApiCall) -> float:
        """By how many seconds a search in this call lags."""
        with self._change:
            return max(
                (rule.seconds for rule in self._rules if rule.do == "lag" and rule.applies(call, "before")), default=0
            )

    def hold(self, rule: Rule, call: ApiCall, *, limit_s: float = 600.0) -> None:
        """Keep the calling thread here until `release`, at most `limit_s`."""
        with self._change:
            ticket = self._next_hold
            self._next_hold += 1
            self._held[ticket] = {"rule": rule.id, "action": call.action, "region": call.region, "phase": rule.phase}
            self._change.notify_all()
            self._change.wait_for(lambda: ticket < self._released, timeout=limit_s)
            del self._held[ticket]

    def release(self) -> int:
        """Let every held call go on; returns how many there were."""
        with self._change:
            count = len(self._held)
            self._let_go()
            return count

    def _let_go(self) -> None:
        self._released = self._next_hold
        self._change.notify_all()

    def shown(self) -> dict[str, Any]:
        """Rules with their counters, what is held now, and the calls seen since the rules were put."""
        with self._change:
            rules = [
                {"id": rule.id, "action": rule.action, "do": rule.do, "phase": rule.phase, "seen": rule.seen,
                 "fired": rule.fired}
                for rule in self._rules
            ]  # fmt: skip
            held = list(self._held.values())
            return {"rules": rules, "held": held, "calls": self._calls, "mutating_calls": self._mutating}
