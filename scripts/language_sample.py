"""Draw a random sample of docstrings, help lines, messages and documentation for review by another reader.

The same seed draws the same sample from the same sources, so that two readers review the same texts.
"""

import argparse
import ast
import random
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from cloudgpu.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cloudgpu", "infra")
SIZES = {"docstrings": 60, "help lines": 45, "messages": 40, "documentation sentences": 40}
_SHORTEST_SENTENCE = 5
"""Words; shorter sentences say too little to be reviewed."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Passage(NamedTuple):
    """A text, and its place: `file:line` or a command line."""

    place: str
    text: str


def docstrings(source: str, name: str) -> Iterator[Passage]:
    """Yield every docstring of a source file with its place."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield Passage(f"{name}:{node.body[0].lineno}", text)


def messages(source: str, name: str) -> Iterator[Passage]:
    """Yield the text of every error with its hint, and of every note and finding. `{}` stands for a value."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign):
            targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
            texts = [node.value] if "message" in targets or "hint" in targets else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _reports(node.func.id):
            texts = [*node.args[:1], *(word.value for word in node.keywords if word.arg in ("hint", "message"))]
        else:
            continue
        shown = [text for text in map(_literal, texts) if " " in text]
        if shown:
            yield Passage(f"{name}:{node.lineno}", "\nhint: ".join(shown))


def _reports(function: str) -> bool:
    return function.endswith("Error") or function in ("Note", "Finding")


def _literal(node: ast.expr) -> str:
    """Return the text of a string literal, or an empty string for any other expression."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    if not all(isinstance(part, ast.FormattedValue | ast.Constant) for part in parts):
        return ""
    return "".join(
        "{}" if isinstance(part, ast.FormattedValue) else str(part.value)
        for part in parts
        if isinstance(part, ast.FormattedValue | ast.Constant)
    )


def help_lines(command: Any, words: Sequence[str] = ("cloudgpu",)) -> Iterator[Passage]:  # noqa: ANN401 - typer's own
    """Yield the help of a command, of its options and arguments, and of its subcommands."""
    place = " ".join(words)
    if command.help:
        yield Passage(place, command.help)
    for parameter in command.params:
        if getattr(parameter, "help", None) and not getattr(parameter, "hidden", False):
            yield Passage(f"{place} {'/'.join(parameter.opts)}", parameter.help)
    if hasattr(command, "commands"):
        for name in command.list_commands(None):
            yield from help_lines(command.commands[name], (*words, name))


def sentences(page: str, name: str) -> Iterator[Passage]:
    """Yield every sentence of a Markdown page with its place, except for headings, code blocks and tables."""
    page = re.sub(r"^( *)```.*?^\1```$|<!--.*?-->", lambda block: "\n" * block[0].count("\n"), page, flags=re.M | re.S)
    paragraph: list[tuple[int, str]] = []
    for number, line in enumerate([*page.splitlines(), ""], 1):
        ends = not line.strip() or line.startswith(("#", "|"))
        if paragraph and (ends or re.match(r" *(?:[-*]|\d+\.) ", line)):
            text = " ".join(" ".join(words for _, words in paragraph).split())
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])", text):
                if len(sentence.split()) >= _SHORTEST_SENTENCE:
                    yield Passage(f"{name}:{paragraph[0][0]}", sentence)
            paragraph = []
        if not ends:
            paragraph.append((number, line))


def drawn(passages: Sequence[Passage], count: int, seed: int) -> list[Passage]:
    """Draw `count` passages with different texts, and return them sorted by place."""
    unique = sorted({passage.text: passage for passage in sorted(passages, reverse=True)}.values())
    return sorted(random.Random(seed).sample(unique, min(count, len(unique))))


def main() -> None:
    """Print the sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=14)
    seed = parser.parse_args().seed
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    sources = [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]
    passages = {
        "docstrings": [passage for name, source in sources for passage in docstrings(source, name)],
        "help lines": list(help_lines(typer.main.get_command(app))),
        "messages": [passage for name, source in sources for passage in messages(source, name)],
    }
    pages = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "decisions" not in path.parts]
    passages["documentation sentences"] = [
        passage
        for path in [ROOT / "README.md", *pages]
        for passage in sentences(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    ]
    for kind, count in SIZES.items():
        print(f"# {count} of {len(passages[kind])} {kind}\n")
        for number, passage in enumerate(drawn(passages[kind], count, seed), 1):
            print(f"{number}. {passage.place}\n{textwrap.indent(passage.text.strip(), '   ')}\n")


if __name__ == "__main__":
    main()
