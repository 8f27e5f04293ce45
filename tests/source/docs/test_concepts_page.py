"""The commands on the page of concepts exist and do what the page says."""

import re
from pathlib import Path

import pytest
import typer

from cloudgpu.cli.main import app
from cloudgpu.settings.sources import load
from tests.documentation import blocks_for

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/explanation/concepts.md").read_text(encoding="utf-8")
(PICTURE,) = blocks_for(__file__, "docs/explanation/concepts.md")
ROWS = {
    cells[0]: cells[1:]
    for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*", PAGE, re.M))
}
COMMANDS = typer.main.get_command(app)
CONCEPTS = ("recipe", "plan", "cluster", "run", "expiry")
PLAIN = {"you", "deleted by", "finished by", "the expiry", *CONCEPTS}
"""What the picture shows besides commands."""


def commands_with(option: str) -> set[str]:
    commands = {name: COMMANDS.get_command(None, name) for name in COMMANDS.list_commands(None)}
    return {name for name, one in commands.items() if any(option in parameter.opts for parameter in one.params)}


def named(text: str) -> set[str]:
    """Return the commands in code spans: their first words, without arguments and options."""
    return {
        span.split(" ")[0] for span in re.findall(r"`([a-z][^`]*)`", text) if not re.match(r"[a-z]+\.|target$", span)
    }


def find_command(words: str) -> typer.core.TyperCommand | None:
    command = COMMANDS
    for word in words.split():
        if word.startswith("-"):
            return command if any(word in parameter.opts for parameter in command.params) else None
        command = command.get_command(None, word) if hasattr(command, "get_command") else None
        if command is None:
            return None
    return command


def in_picture() -> list[str]:
    lines = re.sub(r"[-<>|^v]{3,}|(?<= )[|^v](?= |$)", "  ", PICTURE, flags=re.MULTILINE)
    pieces = [piece.strip() for piece in re.split(r"\s{2,}|,|\n", lines)]
    return [piece for piece in pieces if piece and piece not in PLAIN - {"plan"}]


def test_every_command_in_the_picture_exists():
    found = in_picture()
    assert {"recipe new", "up", "train", "down", "extend", "attach"} <= set(found)
    assert [piece for piece in found if find_command(piece) is None] == []


def test_every_command_named_in_the_text_exists():
    spans = {span for span in re.findall(r"`([a-z][^`]*)`", PAGE) if not re.match(r"[a-z]+\.|target$", span)}
    assert len(spans) > 10
    assert [span for span in spans if find_command(re.sub(r" [A-Z]+\b", "", span)) is None] == []


def test_table_and_picture_have_the_five_concepts():
    assert tuple(row for row in ROWS if row and not row.startswith("-")) == CONCEPTS
    assert all(concept in PICTURE for concept in CONCEPTS)


def test_clusters_are_created_by_the_commands_that_apply_a_plan():
    assert named(ROWS["cluster"][1]) == commands_with("--plan")


def test_clusters_are_deleted_by_the_commands_with_keep_and_those_that_delete():
    assert named(ROWS["cluster"][2]) == commands_with("--keep") | {"down", "sweep"}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("attach", "Follows the run until it finishes, downloads its outputs, deletes the cluster"),
        ("logs", "Does not download outputs or delete the cluster"),
        ("cancel", "keep its cluster running"),
        ("train", "A cluster that already existed is not deleted."),
        ("extend", "Extend a cluster's expiry."),
    ],
)
def test_help_says_the_same_as_the_page(command: str, words: str):
    assert words in " ".join(COMMANDS.get_command(None, command).help.split())


def test_default_target_is_the_rehearsal_cloud(tmp_path: Path):
    assert "The target is the *rehearsal cloud*" in PAGE
    assert load(flags={}, environ={"CLOUDGPU_HOME": str(tmp_path)}, cwd=tmp_path).target == "rehearsal"
