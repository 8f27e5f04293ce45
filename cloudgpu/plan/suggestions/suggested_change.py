"""A verified fix for a rejected plan."""

from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any


@dataclass(frozen=True)
class SuggestedChange:
    """Options that fix an error without causing a new one, verified by planning again.

    Attributes:
        command: Options to add to the same command, such as `--set resources.instance_type=g4dn.metal`.
        gets: Hardware that is tried first with these options, such as `2 x g4dn.metal (8 x T4 16 GiB)`; empty if other
            errors still exclude every candidate.
        worst_case_usd: Worst-case cost with these options; None without candidates.
    """

    command: str
    gets: str = ""
    worst_case_usd: Decimal | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form, with amounts as text."""
        worst = None if self.worst_case_usd is None else str(self.worst_case_usd)
        return {**asdict(self), "gets": self.gets or None, "worst_case_usd": worst}

    def __str__(self) -> str:
        worst = "" if self.worst_case_usd is None else f", worst case {self.worst_case_usd} USD"
        return f"{self.command}  ({self.gets}{worst})" if self.gets else self.command
