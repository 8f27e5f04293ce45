"""The result of a `doctor` check, and the report of all checks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cloudgpu.targets import is_simulated

State = Literal["ok", "warning", "failed", "unknown"]


@dataclass(frozen=True)
class Diagnosis:
    """The result of one `doctor` check.

    Attributes:
        name: Subject of the check, for example `SSH key`.
        state: Result. `warning`: only some commands are affected; `unknown`: the check could not be performed.
        fix: Command to run or setting to change; empty if nothing needs to be done.
    """

    name: str
    state: State
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class DiagnosticReport:
    """The results of all checks. `permissions` contains the `action`, `state` and `why` of each action."""

    target: str
    region: str
    checks: tuple[Diagnosis, ...]
    permissions: tuple[dict[str, str], ...] = field(default=())

    @property
    def failed(self) -> tuple[Diagnosis, ...]:
        """Failed checks."""
        return tuple(check for check in self.checks if check.state == "failed")

    def count(self, state: State) -> int:
        """Return the number of checks with this state."""
        return sum(check.state == state for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        return {
            "target": self.target,
            "simulated": is_simulated(self.target),
            "region": self.region,
            "failed": self.count("failed"),
            "unknown": self.count("unknown"),
            "checks": [vars(check) for check in self.checks],
            "permissions": list(self.permissions),
        }


def most_severe(states: Sequence[State]) -> State:
    """Return the most severe state: `failed`, then `unknown`, `warning` and `ok`."""
    order: tuple[State, ...] = ("failed", "unknown", "warning", "ok")
    return min(states, key=order.index, default="ok")
