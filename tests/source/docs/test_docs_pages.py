"""Every link resolves, and the index lists every page."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.source.docs.markdown import anchors, dead_links, links

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
SECTIONS = {
    "Tutorials": "tutorials",
    "How-to guides": "guides",
    "Reference": "reference",
    "Explanation": "explanation",
}
NAMED = re.compile(r"(?<![\w./-])docs/[\w/-]+\.(?:md|json)")


def tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        paths = [one for one in ROOT.rglob("*") if not one.relative_to(ROOT).parts[0].startswith(".")]
    return [path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes)]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", tracked(".md"), ids=named)
def test_every_link_resolves_to_a_file_and_heading(page: Path):
    assert dead_links(page) == []


def test_dead_links_and_anchors_are_detected(tmp_path: Path):
    (tmp_path / "other.md").write_text("# Other\n\n## `--json`: what it is\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n[a](other.md) [b](other.md#--json-what-it-is) [c](#page) [d](https://example.com/#x)\n"
        "[e](other.md#twice-1) `[code](nowhere.md)`\n\n```\n[code](nowhere.md)\n# no heading\n```\n\n"
        "[f](gone.md) [g](other.md#twice-2) [h](#no-heading)\n"
    )
    assert dead_links(page) == ["gone.md", "other.md#twice-2", "#no-heading"]


def test_pages_referenced_by_sources_exist():
    """Command hints and comments refer to pages by their path from the repository root."""
    missing = []
    for path in tracked():
        if named(path) not in {"CHANGELOG.md", named(Path(__file__))}:
            data = path.read_bytes()
            if b"\0" not in data:
                missing += [(named(path), name) for name in NAMED.findall(data.decode()) if not (ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("page", tracked(".md"), ids=named)
def test_modules_named_by_pages_exist(page: Path):
    """Pages name modules by their path in `cloudgpu/`, for example `run/start.py`."""
    packages = {path.name for path in (ROOT / "cloudgpu").iterdir() if path.is_dir()}
    if page != ROOT / "CHANGELOG.md":
        modules = re.findall(r"`(?:cloudgpu/)?((?:\w+/)+\w+\.py)`", page.read_text(encoding="utf-8"))
        example = "run/train.py"  # a script of a recipe
        inside = [module for module in modules if module.split("/")[0] in packages and module != example]
        assert [module for module in inside if not (ROOT / "cloudgpu" / module).exists()] == []


def test_index_lists_every_page_once_in_its_section():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    lists = {}
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        lists[title] = [link for link in links(body) if link.endswith(".md")]
    assert lists.keys() == SECTIONS.keys()
    for title, folder in SECTIONS.items():
        pages = [str(path.relative_to(DOCS)) for path in sorted((DOCS / folder).rglob("*.md"))]
        assert pages
        extra = ["decisions/README.md"] if folder == "explanation" else []
        assert sorted(lists[title]) == sorted(pages + extra)


def test_every_page_is_in_a_section_folder():
    folders = {path.relative_to(DOCS).parts[0] for path in DOCS.rglob("*.md")}
    assert folders == {"index.md", "decisions", *SECTIONS.values()}


def test_decisions_readme_lists_every_decision():
    listed = links((DOCS / "decisions/README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))


def test_every_page_starts_with_its_title():
    """Code hosts, the site navigation and search results show the title."""
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"\A<!--.*?-->\s*", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert text.startswith("# "), page
        assert anchors(text), page
