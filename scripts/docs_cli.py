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

`cloudgpu COMMAND --help` prints the same text. Options before the command: `--debug` logs AWS
request IDs and does not truncate output, `--version` prints the version, `--install-completion`
installs completion for your shell.

See also: the output of `--json` in [the JSON reference](json.md), the meaning of [exit
codes](exit-codes.md), and defaults for options in [the settings](settings.md).
"""
EXAMPLES: Mapping[str, str] = {
    "gpus": "cloudgpu gpus --count 8 --min-memory 32GB",
    "gpus show": "cloudgpu gpus show V100",
    "containers": "cloudgpu containers --latest-for V100",
    "plan": "cloudgpu plan quickstart --set resources.nodes=4",
    "up": "cloudgpu up quickstart --name lab --on rehearsal",
    "train": "cloudgpu train quickstart --on rehearsal --yes --set epochs=5",
    "attach": "cloudgpu attach quickstart-k3fz8w",
    "status": "cloudgpu status --refresh",
    "logs": "cloudgpu logs --since 10m --timestamps",
    "cancel": "cloudgpu cancel quickstart-k3fz8w",
    "extend": "cloudgpu extend lab --by 2h",
    "down": "cloudgpu down lab",
    "sweep": "cloudgpu sweep --yes",
    "cost": "cloudgpu cost --by day --since 2026-11-01 --until 2026-11-30",
    "ssh": "cloudgpu ssh lab 1 -- nvidia-smi",
    "exec": "cloudgpu exec lab -- nvidia-smi -L",
    "tunnel": "cloudgpu tunnel lab 6006",
    "ssh-config": "cloudgpu ssh-config lab",
    "config": "cloudgpu config",
    "doctor": "cloudgpu doctor --region us-west-2",
    "offers": "cloudgpu offers quickstart --all-regions",
    "quota": "cloudgpu quota --gpu V100 --all-regions",
    "catalog refresh": "cloudgpu catalog refresh --region us-east-1",
    "catalog show": "cloudgpu catalog show",
    "catalog history": "cloudgpu catalog history",
    "catalog revert": "cloudgpu catalog revert",
    "hosts list": "cloudgpu hosts list",
    "hosts check": "cloudgpu hosts check dgx1 dgx2",
    "hosts scan": "cloudgpu hosts scan --trust dgx1=SHA256:jv2UE6xOw9GZ2Ye0hs1KxlcX3kTyXQ0gEVXrrNzgTno",
    "hosts prepare": "cloudgpu hosts prepare dgx1 --install python3-venv",
    "storage create": "cloudgpu storage create sets --kind lustre --size 1200 --zone us-east-1c --linked s3://my-sets",
    "storage list": "cloudgpu storage list --region us-west-2",
    "storage delete": "cloudgpu storage delete sets --delete-data",
    "image bake": "cloudgpu image bake quickstart --name lab-base",
    "image list": "cloudgpu image list --region us-west-2",
    "image delete": "cloudgpu image delete lab-base",
    "recipe new": "cloudgpu recipe new my-run --gpu V100-32GB:8 --nodes 2",
    "recipe check": "cloudgpu recipe check recipes/quickstart",
    "recipe show": "cloudgpu recipe show quickstart --on rehearsal",
    "recipe list": "cloudgpu recipe list",
    "matrix list": "cloudgpu matrix list",
    "matrix show": "cloudgpu matrix show",
    "matrix csv": "cloudgpu matrix csv --out results.csv",
    "recipe schema": "cloudgpu recipe schema > recipe.schema.json",
    "rehearsal start": "cloudgpu rehearsal start",
    "rehearsal status": "cloudgpu rehearsal status --json",
    "rehearsal stop": "cloudgpu rehearsal stop",
    "rehearsal reset": "cloudgpu rehearsal reset --yes",
    "rehearsal env": 'eval "$(cloudgpu rehearsal env)" && aws ec2 describe-instances',
    "rehearsal capacity": "cloudgpu rehearsal capacity 'us-east-1c/p3dn.24xlarge/*=0'",
    "rehearsal quota": "cloudgpu rehearsal quota 'us-east-1/p/on-demand=96'",
    "rehearsal prices": "cloudgpu rehearsal prices 'us-east-1/p3dn.24xlarge/on-demand=29.5'",
    "rehearsal fault rules": "cloudgpu rehearsal fault rules faults.json",
    "rehearsal fault apply": "cloudgpu rehearsal fault apply zone-dry slow-terminate --set zone=us-east-1d",
    "rehearsal fault list": "cloudgpu rehearsal fault list",
    "rehearsal fault show": "cloudgpu rehearsal fault show spot-withdrawn",
    "rehearsal fault clear": "cloudgpu rehearsal fault clear",
    "rehearsal advance": "cloudgpu rehearsal advance 2h",
}


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
    yield f"```\n{EXAMPLES[name]}\n```\n"
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
        f"```\n{unmarked}\n```" if paragraph != unmarked else unmarked
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
