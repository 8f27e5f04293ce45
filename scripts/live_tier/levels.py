"""The levels of `scripts/live`: what each may cost, and the recipe that it runs."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

EXPIRY: Final = "30m"
"""Lifetime of every cluster that a level creates; the nodes then power themselves off."""
SMOKE_RECIPE: Final = str(Path(__file__).parent / "recipes" / "smoke")
PAIR_RECIPE: Final = str(Path(__file__).parents[2] / "recipes" / "nccl-tests")
UNKNOWN_RESERVATION: Final = "cr-00000000000000001"
"""A well-formed ID that no reservation has."""


@dataclass(frozen=True)
class Level:
    """One level.

    Attributes:
        limit_usd: Most that the level may cost. The recipe's budget enforces it; 0 for a level that launches nothing.
        recipe: Recipe of the cluster; empty for a level that launches nothing.
        hardware: The cluster in the question before the launch.
        changes: Fields that differ from the recipe, as for `--set`.
    """

    name: str
    limit_usd: Decimal
    recipe: str = ""
    hardware: str = ""
    changes: tuple[str, ...] = ()

    def settings(self, region: str, image: str = "") -> list[str]:
        """Return the `--set` options of the level's commands."""
        pairs = [f"resources.regions={region}", f"budget.max_usd={self.limit_usd}", f"budget.expiry={EXPIRY}"]
        pairs += [*self.changes, *([f"environment.container.image={image}"] if image else [])]
        return [word for pair in pairs for word in ("--set", pair)]


CHECK = Level("check", Decimal(0))
SMOKE = Level("smoke", Decimal(2), SMOKE_RECIPE, "1 x g4dn.xlarge, on demand")
PAIR = Level(
    "pair",
    Decimal(5),
    PAIR_RECIPE,
    "2 x g4dn.8xlarge, on demand, one EFA interface each",
    ("resources.instance_type=g4dn.8xlarge", "resources.nodes=2", "resources.network=efa"),
)
LEVELS = {level.name: level for level in (CHECK, SMOKE, PAIR)}
