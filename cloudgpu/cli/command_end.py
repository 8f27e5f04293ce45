"""What `main` does when a command ends: close the resources that it opened, and show what may explain its failure."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from cloudgpu.errors import BudgetError, PlanError, UsageError

open_resources = ExitStack()
"""The resources that the command has opened. They belong to the process, which runs one command at a time."""
_CAUSED_BY_INPUT = frozenset({UsageError.exit_code, BudgetError.exit_code, PlanError.exit_code})
_notes: dict[str, Callable[[], str]] = {}


def add_failure_note(name: str, note: Callable[[], str]) -> None:
    """Register a function that returns a note, or an empty string. The last function of a name applies."""
    _notes[name] = note


def take_failure_notes(exit_code: int) -> Iterator[str]:
    """Yield the notes for a command with this exit code, and forget them. An error in the user's input has none."""
    notes = list(_notes.values())
    _notes.clear()
    if exit_code and exit_code not in _CAUSED_BY_INPUT:
        yield from filter(None, (note() for note in notes))
