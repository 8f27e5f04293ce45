"""What one check of `doctor` found, and all of them together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "warning", "failed", "unknown"]


@dataclass(frozen=True)
class Check:
    """One line of `doctor`.

    Attributes:
        name: What was looked at, for people: `SSH key`.
        state: `warning` is something that only some commands need; `unknown` could not be asked.
        fix: What to type or change; empty where nothing is to be done.
    """

    name: str
    state: State
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class DiagnosticReport:
    """Everything that was looked at. `permissions` has one row an action: `action`, `state` and `why`."""

    target: str
    region: str
    checks: tuple[Check, ...]
    permissions: tuple[dict[str, str], ...] = field(default=())

    @property
    def failed(self) -> tuple[Check, ...]:
        """What has to be cured."""
        return tuple(one for one in self.checks if one.state == "failed")

    def count(self, state: State) -> int:
        """How many checks ended so."""
        return sum(one.state == state for one in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The documented form."""
        return {
            "target": self.target,
            "simulated": self.target == "rehearsal",
            "region": self.region,
            "failed": self.count("failed"),
            "unknown": self.count("unknown"),
            "checks": [vars(one) for one in self.checks],
            "permissions": list(self.permissions),
        }


def worst(states: Sequence[State]) -> State:
    """What several answers come to: one failure is a failure, else one doubt is a doubt."""
    order: tuple[State, ...] = ("failed", "unknown", "warning", "ok")
    return min(states, key=order.index, default="ok")
