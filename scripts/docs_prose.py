"""Wrap the prose of Markdown files at 100 columns. Tables, code, headings and comments are not changed."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 100
ROOT = Path(__file__).resolve().parent.parent

_ITEM = re.compile(r"(\s*(?:[-*+]|\d+\.)\s+)")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_KEPT = re.compile(r"\s*(?:\||#{1,6} |<!--|>|$)")
# A code span that fits on a line is never split. One word may contain several code spans.
_WORD = re.compile(r"(?:(`+)(?:(?!\1).)+\1(?!`)|\S)+")
# Text that would start a list, heading, quotation or table at the beginning of a line.
_STRUCTURE = re.compile(r"(?:[-+*]|\d+[.)]|#{1,6}|>.*|\|.*|=+|-{2,})$")


def pages() -> list[Path]:
    """Return the pages to wrap."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return top + sorted((ROOT / "docs").rglob("*.md"))


def wrapped(text: str) -> str:
    """Wrap every paragraph that contains a line that is too long; leave other paragraphs unchanged."""
    return "".join(line + "\n" for block in _blocks(text) for line in block)


def _blocks(text: str) -> Iterator[list[str]]:
    paragraph: list[str] = []
    fence = ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if not fence and not mark and not _KEPT.match(line):
            if _ITEM.match(line) and paragraph:
                yield _filled(paragraph)
                paragraph = []
            paragraph.append(line)
            continue
        yield _filled(paragraph)
        paragraph = []
        if mark and not fence:
            fence = mark[1]
        elif mark and line.strip() == mark[1] and mark[1].startswith(fence):
            fence = ""
        yield [line]
    yield _filled(paragraph)


def _filled(paragraph: list[str]) -> list[str]:
    if all(len(line) <= WIDTH for line in paragraph):
        return paragraph
    item = _ITEM.match(paragraph[0])
    first = item[1] if item else re.match(r"\s*", paragraph[0])[0]  # type: ignore[index]
    words = _words(" ".join(line.strip() for line in paragraph)[len(first.strip()) :])
    lines = [first + next(words)]
    for word in words:
        if len(lines[-1]) + 1 + len(word) <= WIDTH:
            lines[-1] += " " + word
        else:
            lines.append(" " * len(first) + word)
    return lines


def _words(text: str) -> Iterator[str]:
    matches = (match[0] for match in _WORD.finditer(text.strip()))
    held = ""
    for word in (part for match in matches for part in (match.split() if len(match) > WIDTH else [match])):
        if held and _STRUCTURE.match(word):
            held += " " + word
            continue
        if held:
            yield held
        held = word
    yield held


def main() -> int:
    """Wrap the pages or, with --check, list the pages that are not wrapped and return 1 if there are any."""
    changed = []
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if wrapped(text) != text:
            changed.append(path.relative_to(ROOT))
            if "--check" not in sys.argv:
                path.write_text(wrapped(text), encoding="utf-8")
    verb = "has lines of prose longer than 100 columns" if "--check" in sys.argv else "wrapped"
    for name in changed:
        print(f"{verb}: {name}")
    return 1 if changed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
