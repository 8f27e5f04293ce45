#!/usr/bin/env python3
"""Generate `docs/reference/cli.md` from the commands. `scripts/docs.py` writes it with the other pages."""

import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docs_prose
import typer

from cloudgpu.cli.main import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"
INTRODUCTION = """<!-- Generated from cloudgpu/cli by scripts/docs_cli.py; edit the help of the commands instead. -->
# Commands

`cloudgpu COMMAND --help` prints the same text. These options come before the command: `--debug`
logs AWS request IDs and shows all installer output, `--version` prints the version, and
`--install-completion` installs completion for your shell.

See also [the JSON reference](json.md) for the output of `--json`, [exit codes](exit-codes.md) for
their meanings, and [settings](settings.md) for the defaults of options.
"""
OUTPUTS = PAGE.parent / "cli-output"
"""Examples with output: one file for each command, written by `python -m tests.rehearsal.cli_examples`."""

EXAMPLES: Mapping[str, tuple[str, str]] = {
    "tunnel": ("runs until Ctrl-C", "cloudgpu tunnel lab 6006"),
    "hosts check": ("needs your own hosts", "cloudgpu hosts check dgx1 dgx2"),
    "hosts scan": (
        "needs your own hosts",
        "cloudgpu hosts scan --trust dgx1=SHA256:jv2UE6xOw9GZ2Ye0hs1KxlcX3kTyXQ0gEVXrrNzgTno",
    ),
    "hosts prepare": ("needs your own hosts", "cloudgpu hosts prepare dgx1 --install python3-venv"),
}
"""Examples without output, with the reason why they are not run."""


def markdown() -> str:
    """Return the text of the page."""
    parts = [INTRODUCTION]
    for name, command in _commands(typer.main.get_command(app)):
        parts.append("\n".join(_section(name, command)))
    return docs_prose.wrapped("\n".join(parts))


def _commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer keeps its classes private
    for name in group.list_commands(None):
        command = group.commands[name]
        if command.hidden:
            continue
        full_name = f"{path} {name}".strip()
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield full_name, command
            yield from _commands(command, full_name)
        else:
            yield full_name, command


def _section(name: str, command: Any) -> Iterator[str]:  # noqa: ANN401
    yield f"## cloudgpu {name}\n"
    yield f"{_help_markdown(command.help)}\n"
    output = OUTPUTS / f"{name.replace(' ', '-')}.txt"
    if name in EXAMPLES:
        reason, line = EXAMPLES[name]
        yield f"<!-- not run: {reason} -->\n```\n{line}\n```\n"
    else:
        text = output.read_text(encoding="utf-8")
        yield f"<!-- tested by tests/rehearsal/test_cli_examples.py -->\n```\n{text}```\n"
    rows = [_row(param) for param in command.params if not getattr(param, "hidden", False)]
    if rows:
        yield "| | |\n|---|---|"
        yield from (f"| `{left}` | {right} |" for left, right in rows)
        yield ""


def _help_markdown(text: str) -> str:
    """Return a command's help as Markdown. Paragraphs that click must not rewrap become code blocks."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    marked = [paragraph.removeprefix("\b\n") for paragraph in paragraphs]
    blocks = [
        f"<!-- tested by tests/unit/cli/test_docs.py -->\n```\n{unmarked}\n```" if paragraph != unmarked else unmarked
        for paragraph, unmarked in zip(paragraphs, marked, strict=True)
    ]
    return "\n\n".join(blocks)


def _row(param: Any) -> tuple[str, str]:  # noqa: ANN401
    left, right = param.get_help_record(typer.Context(typer.main.get_command(app)))
    return left.replace("|", "\\|"), right.replace("|", "\\|")


def main() -> int:
    """Write the page or, with --check, compare it."""
    text = markdown()
    if "--check" in sys.argv:
        return 0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
