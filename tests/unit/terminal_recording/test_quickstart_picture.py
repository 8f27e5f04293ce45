"""The picture in the README, written by scripts/recording."""

import re
from pathlib import Path
from xml.etree import ElementTree

from terminal_recording.__main__ import COMMAND, MOST_BYTES

ROOT = Path(__file__).parents[3]
FILE = ROOT / "docs/images/quickstart.svg"
PICTURE = FILE.read_text(encoding="utf-8")
SPACE = "{http://www.w3.org/2000/svg}"


def lines() -> list[str]:
    """Return the lines of the last frame."""
    root = ElementTree.fromstring(PICTURE)
    style = root.find(f"{SPACE}style").text
    hidden = set(re.search(r"^([.k0-9,]+)\{opacity:0\}$", style, re.MULTILINE)[1].replace(".", "").split(","))
    rows: dict[int, dict[float, str]] = {}
    for parent in (root, *(group for group in root.findall(f"{SPACE}g") if group.get("class") not in hidden)):
        for text in parent.findall(f"{SPACE}text"):
            rows.setdefault(int(text.get("y")), {})[float(text.get("x"))] = text.text
    return [" ".join(row[x] for x in sorted(row)) for _, row in sorted(rows.items())]


def test_last_frame_is_a_successful_quickstart():
    shown = lines()
    assert shown[0] == f"$ cloudgpu {' '.join(COMMAND)}"
    text = " ".join(" ".join(shown).split())
    assert "succeeded (simulated)" in text
    assert "left nothing (verified by tag search)" in text
    assert len(shown) <= 25


def test_command_is_the_one_that_the_quickstart_script_runs():
    assert f'cloudgpu" {" ".join(COMMAND)}' in (ROOT / "scripts/quickstart").read_text(encoding="utf-8")


def test_picture_is_small_and_loads_nothing():
    assert len(PICTURE.encode()) <= MOST_BYTES
    addresses = re.findall(r"[a-z]+://[^\"\s)]+|\b(?:href|src|url|@import)\b.*", PICTURE)
    assert addresses == ["http://www.w3.org/2000/svg"]
    assert "<script" not in PICTURE


def test_picture_shows_training_while_it_runs():
    assert len(re.findall(r"epoch=\d+ loss=", PICTURE)) >= 5
    assert PICTURE.count("@keyframes") >= 10
