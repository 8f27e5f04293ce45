"""What would work instead, as a value: options to type, and what one gets with them."""

from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any


@dataclass(frozen=True)
class Remedy:
    """One way past a refusal that was planned through: with it, the refusal is gone and nothing new is refused.

    Attributes:
        command: Options to add to the same command, `--set resources.instance_type=g4dn.metal`.
        gets: The hardware that is tried first with it, `2 x g4dn.metal (8 x T4 16 GiB)`; empty while something else
            still leaves nothing to try.
        worst_case_usd: Of the plan with it; None while that has no candidates.
    """

    command: str
    gets: str = ""
    worst_case_usd: Decimal | None = None

    def as_json(self) -> dict[str, Any]:
        """Its documented form; money as text."""
        worst = None if self.worst_case_usd is None else str(self.worst_case_usd)
        return {**asdict(self), "gets": self.gets or None, "worst_case_usd": worst}

    def __str__(self) -> str:
        worst = "" if self.worst_case_usd is None else f", worst case {self.worst_case_usd} USD"
        return f"{self.command}  ({self.gets}{worst})" if self.gets else self.command
