"""The messages on the page about troubleshooting are those of the code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/guides/troubleshooting.md").read_text(encoding="utf-8")
TEXTS = [path.read_text(encoding="utf-8") for folder in ("cloudgpu",) for path in (ROOT / folder).rglob("*")
         if path.suffix in (".py", ".sh")]  # fmt: skip
# A message may be split over several string literals, and has values in it.
SOURCE = re.sub(r"\{[^{}\n]*\}", "VALUE", re.sub(r'"\s*\n\s*f?"', "", "\n".join(TEXTS)))
COMMAND = re.compile(r"(?:cloudgpu|aws|sudo|train|sweep) |--")


def messages() -> list[str]:
    """Return the code spans of several words that are no command, without values."""
    spans = [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", PAGE)]
    return [span for span in spans if " " in span and not COMMAND.search(span) and "=" not in span]


def test_page_names_messages():
    assert len(messages()) >= 15


@pytest.mark.parametrize("message", sorted(set(messages())))
def test_message_is_in_the_code(message: str):
    pieces = [
        piece.strip()
        for piece in re.split(r"\b[A-Z]{3,}\b|\.\.\.|-\.\.\.|\bdirect\b|nvidia-\w+-|pulumi-[\w-]+", message)
    ]
    for piece in pieces:
        assert piece in SOURCE, piece
