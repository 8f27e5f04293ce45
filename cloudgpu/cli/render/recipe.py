"""Recipes as text and as JSON: the list of recipes, and the results of checking them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.errors import RecipeError
from cloudgpu.recipe.loading.loader import display_path
from cloudgpu.recipe.summary import Summary
from cloudgpu.text import command

_COLUMNS = (
    Column("recipe"),
    Column("on", narrow="wrap"),
    Column("with", priority=2),
    Column("software", priority=3),
    Column("reference", priority=1, narrow="wrap"),
    Column("description", label="", below=True),
)


@dataclass(frozen=True)
class CheckedRecipe:
    """A recipe file that was checked. `problems` is empty if the recipe is valid."""

    path: Path
    name: str
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        return {
            "recipe": self.name,
            "path": str(self.path),
            "ok": not self.problems,
            "problems": list(self.problems),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


def list_lines(summaries: Sequence[Summary], invalid: Sequence[CheckedRecipe], width: int | None = None) -> list[str]:
    """Return a table row per recipe, each followed by the recipe's description, then one line per invalid recipe."""
    if not summaries and not invalid:
        return ["no recipes"]
    table = Table(_COLUMNS, [_row(summary) for summary in summaries])
    return [*table.lines(width), *wrap_lines([_wrong_line(summary) for summary in invalid], width)]


def check_lines(checked: Sequence[CheckedRecipe]) -> list[str]:
    """Return one line per valid recipe, each followed by its warnings and notes."""
    return [
        line
        for result in checked
        if not result.problems
        for line in (
            f"{display_path(result.path)}: {result.name} is a valid recipe",
            *(f"  warning: {warning}" for warning in result.warnings),
            *(f"  note: {note}" for note in result.notes),
        )
    ]


def invalid_recipes_error(checked: Sequence[CheckedRecipe]) -> RecipeError:
    """Return one error that lists all problems of the invalid recipes."""
    invalid = [result for result in checked if result.problems]
    problems = [line for result in invalid for line in result.problems]
    message = f"{len(invalid)} of {len(checked)} recipes have problems: {', '.join(result.name for result in invalid)}"
    return RecipeError(message, problems=problems, hint="to see the allowed fields: cloudgpu recipe schema")


def _row(summary: Summary) -> tuple[str, ...]:
    return (
        summary.name,
        summary.hardware,
        summary.launcher,
        summary.software or "-",
        summary.reference or "-",
        summary.description,
    )


def _wrong_line(result: CheckedRecipe) -> str:
    count = "a problem" if len(result.problems) == 1 else f"{len(result.problems)} problems"
    check = command("cloudgpu", "recipe", "check", str(result.path.parent))
    return f"{result.name}  has {count}; for details: {check}"
