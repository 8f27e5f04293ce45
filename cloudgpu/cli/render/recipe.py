"""Recipes as text and as documents: the list, and what a check of several found."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudgpu.cli.terminal.table import columns
from cloudgpu.errors import RecipeError
from cloudgpu.recipe.summary import Summary
from cloudgpu.text import command

_HEADINGS = ("recipe", "on", "with", "software", "reference")
_LONGEST = 44
"""Characters of a software's name; images of private registries are longer."""


@dataclass(frozen=True)
class Checked:
    """One recipe file and what is wrong with it."""

    path: Path
    name: str
    problems: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Its documented form."""
        return {"recipe": self.name, "path": str(self.path), "ok": not self.problems, "problems": list(self.problems)}


def list_lines(found: Sequence[Summary], wrong: Sequence[Checked]) -> list[str]:
    """Two lines a recipe: what it runs on and with, and its sentence."""
    if not found and not wrong:
        return ["no recipes"]
    rows = columns([_HEADINGS, *(_row(one) for one in found)]) if found else []
    lines = rows[:1]
    for one, row in zip(found, rows[1:], strict=True):
        lines += [row, *([f"    {one.description}"] if one.description else [])]
    return [*lines, *(_wrong_line(one) for one in wrong)]


def check_lines(checked: Sequence[Checked]) -> list[str]:
    """One line for each that is right."""
    return [f"{one.path}: {one.name} is a valid recipe" for one in checked if not one.problems]


def refusal(checked: Sequence[Checked]) -> RecipeError:
    """The error of a check of several, some of which are wrong: every problem of all of them."""
    wrong = [one for one in checked if one.problems]
    problems = [line for one in wrong for line in one.problems]
    message = f"{len(wrong)} of {len(checked)} recipes have problems: {', '.join(one.name for one in wrong)}"
    return RecipeError(message, problems=problems, hint="cloudgpu recipe schema prints what is allowed")


def _row(one: Summary) -> tuple[str, ...]:
    software = one.software if len(one.software) <= _LONGEST else f"...{one.software[3 - _LONGEST :]}"
    return one.name, one.hardware, one.launcher, software or "-", one.reference or "-"


def _wrong_line(one: Checked) -> str:
    count = "a problem" if len(one.problems) == 1 else f"{len(one.problems)} problems"
    return f"{one.name}  has {count}; `{command('cloudgpu', 'recipe', 'check', str(one.path.parent))}` tells"
