"""Report a command's partial result after an error or Ctrl-C, and print how to continue after Ctrl-C."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.errors import CloudGpuError
from cloudgpu.text import command


class Interrupted(BaseException):
    """An interruption by Ctrl-C; `partial_result` contains fields for the command's `--json` output.

    This is not a KeyboardInterrupt, because typer would convert that to an exit code and lose the fields.
    """

    def __init__(self, partial_result: dict[str, Any]) -> None:
        super().__init__("interrupted")
        self.partial_result = partial_result


@contextmanager
def reporting_partial_result(partial_result: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Attach the command's partial result to the error or Ctrl-C that aborts the command."""
    try:
        yield
    except CloudGpuError as err:
        err.partial_result = err.partial_result or partial_result()
        raise
    except KeyboardInterrupt:
        raise Interrupted(partial_result()) from None


@contextmanager
def print_on_interrupt(screen: Screen, *lines: str) -> Iterator[None]:
    """Print these lines after Ctrl-C, then reraise the interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        screen.lines(["", *lines])
        raise


def reattach_lines(run_id: str) -> tuple[str, str]:
    """Return lines that tell the user that a run continues, and how to reattach to the run or cancel it."""
    return (
        f"run {run_id} continues without this command",
        f"to reattach: {command('cloudgpu', 'attach', run_id)}    to cancel: {command('cloudgpu', 'cancel', run_id)}",
    )
