"""Every fenced block of the documentation is run or compared by a test, or says why it cannot be."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from cloudgpu.cli.terminal.wrapping import display_width
from cloudgpu.recipe import loader
from cloudgpu.settings.sources import load
from tests.documentation import PAGES, REASONS, ROOT, Block, blocks, blocks_for, commands, same_output

BLOCKS = [block for page in PAGES for block in blocks(page)]
RUN_BY = ROOT / "tests/rehearsal/test_readme.py"
REST_OF_A_RECIPE = {
    "schema": 1,
    "name": "page",
    "resources": {"instance_type": "p3dn.24xlarge", "nodes": 2, "regions": ["us-east-1"]},
    "launch": {"with": "each-node", "command": "bash -c true"},
    "budget": {"expiry": "1h"},
}
STAYS_WHOLE = re.compile(r" *(?:use it +)?(?:cloudgpu .*|aws .*|\S+)")
"""A line that is pasted: a command, or a single word."""
NAMED_FILES = re.compile(r"(?<![\w./{~-])(?:\./)?((?:scripts|benchmarks|recipes|infra)/[\w./-]*\w)")
WRITTEN_BY_READERS = {"recipes/web/recipe.yaml", "recipes/summing/recipe.yaml"}


def problem(block: Block) -> str:
    """Return why nothing tests a block, or an empty string."""
    kind, _, reason = block.mark.partition(": ")
    if kind == "not run":
        return "" if reason in REASONS else f"{reason!r} is not in REASONS"
    if not block.mark and block.language in {"yaml", "toml"}:
        return ""
    test, taken, by = RUN_BY, f'"{block.page}"', "run_page("
    if block.mark.startswith("tested by "):
        test, taken, by = ROOT / block.mark.removeprefix("tested by "), block.page, "blocks_for("
    elif block.mark != "run" and kind != "file":
        return f"the comment before it ({block.mark!r}) says nothing about a test"
    text = test.read_text(encoding="utf-8") if test.is_file() else ""
    return "" if by in text and taken in text else f"{test} does not take the blocks of the page"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_block_is_tested_or_says_why_not(block: Block):
    assert problem(block) == ""


def test_every_fence_is_the_start_or_the_end_of_a_block():
    """A fence in another form, such as an indented one, would not be seen."""
    for page in PAGES:
        fences = re.findall(r"^.*(?:```|~~~).*$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(blocks(page)), page


@pytest.mark.parametrize(
    ("mark", "language", "expected"),
    [
        ("", "", "says nothing about a test"),
        ("", "python", "says nothing about a test"),
        ("recipe", "yaml", "says nothing about a test"),
        ("not run: too long", "", "is not in REASONS"),
        ("tested by tests/source/docs/test_none.py", "", "does not take the blocks of the page"),
        ("tested by tests/source/docs/test_docs_pages.py", "", "does not take the blocks of the page"),
        ("run", "", "does not take the blocks of the page"),
    ],
)
def test_block_that_nothing_tests_is_reported(mark: str, language: str, expected: str):
    assert expected in problem(Block("none.md", 1, mark, language, ""))


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.language == "yaml" and not one.mark], ids=str)
def test_yaml_block_is_a_recipe_or_part_of_one(block: Block, tmp_path: Path):
    value = YAML(typ="safe").load(block.text)
    if "schema" not in value:
        if all(isinstance(one, dict) and "pattern" in one for one in value.values()):
            value = {"metrics": value}
        value = REST_OF_A_RECIPE | value
    path = tmp_path / "recipe.yaml"
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(value, file)
    for name in re.findall(r"[\w-]+\.(?:py|txt)\b", str(value)):
        (tmp_path / name).touch()
    loader.load(path)


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.language == "toml" and not one.mark], ids=str)
def test_toml_block_is_a_settings_file(block: Block, tmp_path: Path):
    (tmp_path / "cloudgpu.toml").write_text(block.text, encoding="utf-8")
    settings = load(flags={}, environ={"CLOUDGPU_HOME": str(tmp_path / "home")}, cwd=tmp_path)
    given = re.findall(r'^(\w+) = "(.*)"$', block.text, re.MULTILINE)
    assert given
    assert [(name, str(getattr(settings, name))) for name, _ in given] == given


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_files_named_in_a_block_exist(block: Block):
    named = set(NAMED_FILES.findall(block.text)) - WRITTEN_BY_READERS
    assert [name for name in sorted(named) if name.split("/")[1] != "my-run" and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs/reference/cli-output").iterdir()), ids=lambda path: path.stem)
def test_outputs_in_the_reference_of_commands_fit_in_80_columns(path: Path):
    line, *output = path.read_text(encoding="utf-8").splitlines()
    assert line.startswith("$ cloudgpu ")
    assert [text for text in output if display_width(text) > 80 and not STAYS_WHOLE.fullmatch(text)] == []


def test_output_is_compared_without_what_varies():
    shown = "run my-run-k3fz8w  took 2.1 s\n ...\n  expires 2026-11-27 10:25 UTC"
    assert same_output(shown, "run my-run-aaaaaa  took 3 min 2 s\nanything\nexpires\n2026-12-01 08:00 UTC")
    assert not same_output(shown, "run my-run-aaaaaa  took 3 min 2 s\nanything\nends 2026-12-01 08:00 UTC")
    assert not same_output(shown, "run other  took 3 min 2 s\nexpires 2026-12-01 08:00 UTC")
    assert same_output("a\n...\nb\n...\nc", "a x b y c")
    assert not same_output("a\n...\nb\n...\nc", "a x y c")
    assert not same_output("a", "a b")
    assert same_output("speed 10", "speed 11", [r"speed \d+"])
    assert not same_output("price 10", "price 11")
    with pytest.raises(AssertionError):
        same_output("speed 10", "speed 10", [r"velocity \d+"])
    assert same_output("==> down  2.0 s  3 resources deleted\ndone", "done")


def test_commands_are_separated_from_their_output():
    assert commands("cloudgpu up  # and more\n\ncloudgpu down\n") == [("cloudgpu up", ""), ("cloudgpu down", "")]
    assert commands("$ cloudgpu x\none\ntwo\n$ cloudgpu y\n") == [("cloudgpu x", "one\ntwo\n"), ("cloudgpu y", "")]


def test_only_the_blocks_that_name_a_test_are_its_own():
    (picture,) = blocks_for(str(ROOT / "tests/source/docs/test_concepts_page.py"), "docs/explanation/concepts.md")
    assert "recipe new" in picture
    with pytest.raises(AssertionError, match=r"no block of README\.md is marked"):
        blocks_for(__file__, "README.md")
