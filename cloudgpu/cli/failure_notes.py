"""Circumstances that may explain why a command failed. They are shown below its error."""

from collections.abc import Callable, Iterator

from cloudgpu.errors import BudgetError, PlanError, UsageError

_CAUSED_BY_INPUT = frozenset({UsageError.exit_code, BudgetError.exit_code, PlanError.exit_code})
_sources: dict[str, Callable[[], str]] = {}


def add(name: str, note: Callable[[], str]) -> None:
    """Register a function that returns a note, or an empty string. The last function of a name applies."""
    _sources[name] = note


def take(exit_code: int) -> Iterator[str]:
    """Yield the notes for a command with this exit code, and forget them. An error in the user's input has none."""
    notes = list(_sources.values())
    _sources.clear()
    if exit_code and exit_code not in _CAUSED_BY_INPUT:
        yield from filter(None, (note() for note in notes))
