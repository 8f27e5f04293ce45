"""The text above the first heading of the README can be read in a minute."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCREEN = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
WORDS_A_MINUTE = 240
"""What an adult reads of plain text in a minute."""


def test_first_screen_is_read_in_a_minute():
    prose = re.sub(r"```.*?```|<!--.*?-->|!\[.*?\]\(.*?\)", "", SCREEN, flags=re.DOTALL)
    assert 100 < len(prose.split()) <= WORDS_A_MINUTE


def test_first_screen_has_a_picture_two_commands_and_five_points():
    (picture,) = re.findall(r"^!\[[^\]]+\]\(([^)]+)\)$", SCREEN, re.MULTILINE)
    assert (ROOT / picture).is_file()
    (block,) = re.findall(r"^```\n(.*?)^```$", SCREEN, re.MULTILINE | re.DOTALL)
    scripts = [line.split()[0] for line in block.splitlines()]
    assert scripts == ["./scripts/quickstart", "./scripts/test"]
    assert all((ROOT / script).stat().st_mode & 0o111 for script in scripts)
    assert len(re.findall(r"^- \*\*.+?\*\*", SCREEN, re.MULTILINE)) == 5


def test_first_screen_says_what_is_simulated():
    assert "the AWS API, the GPUs and the costs are simulated" in " ".join(SCREEN.split())
