"""Recipes as text and as JSON: the list of recipes, and the results of checking them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudgpu.cli.terminal.table import align_columns
from cloudgpu.errors import RecipeError
from cloudgpu.recipe.summary import Summary
from cloudgpu.text import command

_HEADINGS = ("recipe", "on", "with", "software", "reference")
_LONGEST = 44
"""Maximum length of a software name. Longer names, such as those of private images, are shortened."""


@dataclass(frozen=True)
class CheckedRecipe:
    """A recipe file that was checked, and its problems."""

    path: Path
    name: str
    problems: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        return {"recipe": self.name, "path": str(self.path), "ok": not self.problems, "problems": list(self.problems)}


def list_lines(summaries: Sequence[Summary], invalid: Sequence[CheckedRecipe]) -> list[str]:
    """Return two lines per recipe: its hardware and software, and its description. Invalid recipes follow."""
    if not summaries and not invalid:
        return ["no recipes"]
    rows = align_columns([_HEADINGS, *(_row(summary) for summary in summaries)]) if summaries else []
    lines = rows[:1]
    for summary, row in zip(summaries, rows[1:], strict=True):
        lines += [row, *([f"    {summary.description}"] if summary.description else [])]
    return [*lines, *(_wrong_line(summary) for summary in invalid)]


def check_lines(checked: Sequence[CheckedRecipe]) -> list[str]:
    """Return one line per valid recipe."""
    return [f"{result.path}: {result.name} is a valid recipe" for result in checked if not result.problems]


def invalid_recipes_error(checked: Sequence[CheckedRecipe]) -> RecipeError:
    """Return the error for invalid recipes, with all problems of each."""
    invalid = [result for result in checked if result.problems]
    problems = [line for result in invalid for line in result.problems]
    message = f"{len(invalid)} of {len(checked)} recipes have problems: {', '.join(result.name for result in invalid)}"
    return RecipeError(message, problems=problems, hint="to see the allowed fields: cloudgpu recipe schema")


def _row(summary: Summary) -> tuple[str, ...]:
    software = summary.software if len(summary.software) <= _LONGEST else f"...{summary.software[3 - _LONGEST :]}"
    return summary.name, summary.hardware, summary.launcher, software or "-", summary.reference or "-"


def _wrong_line(result: CheckedRecipe) -> str:
    count = "a problem" if len(result.problems) == 1 else f"{len(result.problems)} problems"
    check = command("cloudgpu", "recipe", "check", str(result.path.parent))
    return f"{result.name}  has {count}; for details: {check}"
