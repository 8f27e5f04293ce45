"""The fenced blocks of the documentation, and the comparison of shown output with real output.

The comment before a block says how it is tested:

    <!-- run -->             commands that `tests/rehearsal/test_readme.py` runs, in their order. In a block with `$ `
                             before each command, the other lines are the output.
    <!-- file: NAME -->      the content of a file that these commands use
    <!-- tested by FILE -->  FILE takes the block with `blocks_for` and tests all of it
    <!-- not run: REASON --> it cannot run here; `REASONS` lists the reasons

YAML blocks are recipes, or sections of one, and TOML blocks are settings. They need no comment:
`tests/source/docs/test_blocks.py` loads them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "docs").rglob("*.md")
        if path.relative_to(ROOT).parts[1] != "decisions"
    ),
)
REASONS = frozenset(
    {
        "needs an AWS account",
        "needs an Alibaba Cloud account",
        "needs your own hosts",
        "downloads from the internet",
        "sets up a checkout or runs its tests",
        "takes minutes",
        "is a drawing",
        "runs until Ctrl-C",
    }
)
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]+) -->\n\n?)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_ANY = "..."


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: The page, relative to the root of the checkout.
        line: The line of the opening fence.
        mark: The text of the comment before the block.
    """

    page: str
    line: int
    mark: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """Return every fenced block of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(page, line, match["mark"] or "", match["language"], match["text"]))
    return found


def blocks_for(test: str, page: str) -> list[str]:
    """Return the blocks of a page that name a test module: all of them, so that the module unpacks as many as it tests.

    Raises:
        AssertionError: No block of the page names the module.
    """
    name = str(Path(test).relative_to(ROOT))
    found = [block.text for block in blocks(page) if block.mark == f"tested by {name}"]
    assert found, f"no block of {page} is marked <!-- tested by {name} -->"
    return found


_VARIES = (
    (r"==> [a-z ]+ \d+(\.\d+)? (s|min)\b( \d+ s\b)?( \d+ resources? [a-z]+,?)*", " "),  # only shown for long stages
    (r"SHA256:[\w+/]{43}", "SHA256:..."),
    (r"\b(i|vol|sg|fs|ami|snap|lt|eni|subnet|fleet|vpc|igw)-[0-9a-f]{8}[0-9a-f-]*", r"\1-ID"),
    (r"\b(my-run|quickstart|summing)-[0-9a-z]{6}\b", r"\1-ID"),
    (r"\bip-127-\d+-\d+-\d+|\b127\.\d+\.\d+\.\d+(:\d{5})?", "ADDRESS"),
    (r"\b\d{4}-\d\d-\d\d( \d\d:\d\d(:\d\d)? UTC)?|\b\d\d:\d\d UTC", "DATE"),
    (r"\b\d+(\.\d+)? (ms|s|min|h|days|d)\b( \d+ (s|min)\b)?", "TIME"),
    (r"\b\d+ (MiB of memory|GiB free)", r"N \1"),
    (r"\bprocess \d+", "process N"),
)


def words(text: str, varies: Sequence[str] = ()) -> list[str]:
    """Return the words of an output without what differs between two runs: IDs, addresses, dates, durations, layout.

    Args:
        text: The output.
        varies: Further regular expressions of text that differs.
    """
    text = _plain(text)
    for pattern, same in (*((pattern, "VARIES") for pattern in varies), *_VARIES):
        text = re.sub(pattern, same, text)
    return text.split()


def _plain(text: str) -> str:
    """Return an output in one line without frames."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


def same_output(shown: str, real: str, varies: Sequence[str] = ()) -> bool:
    """Return whether a shown output is the real one. A line `...` in it matches any lines.

    Raises:
        AssertionError: A pattern of what varies matches nothing that is shown, so it no longer does its work.
    """
    plain = _plain(shown)
    assert [pattern for pattern in varies if not re.search(pattern, plain)] == []
    pieces = [words(piece, varies) for piece in re.split(rf"^ *{re.escape(_ANY)}$", shown, flags=re.MULTILINE)]
    rest = words(real, varies)
    first, *others = pieces
    if not others:
        return first == rest
    if rest[: len(first)] != first:
        return False
    rest = rest[len(first) :]
    *middle, last = others
    for piece in middle:
        start = next((n for n in range(len(rest) - len(piece) + 1) if rest[n : n + len(piece)] == piece), None)
        if start is None:
            return False
        rest = rest[start + len(piece) :]
    return len(last) <= len(rest) and rest[len(rest) - len(last) :] == last


def commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of a block with the output shown for each; comments are removed from commands without output.

    Raises:
        AssertionError: A line before the first `$ ` is no command.
    """
    if not re.search(r"^\$ ", text, re.MULTILINE):
        return [(line.partition("#")[0].strip(), "") for line in text.splitlines() if line.strip()]
    before, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert not before.strip(), before
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]
