"""Every link of the pages leads somewhere, and every page is found from the first one."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.unit.docs.markdown import anchors, dead_links, links

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
def test_every_link_leads_to_a_file_and_a_heading(page: Path):
    assert dead_links(page) == []


def test_a_dead_link_and_a_dead_anchor_are_found(tmp_path: Path):
    (tmp_path / "other.md").write_text("# Other\n\n## `--json`: what it is\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n[a](other.md) [b](other.md#--json-what-it-is) [c](#page) [d](https://example.com/#x)\n"
        "[e](other.md#twice-1) `[code](nowhere.md)`\n\n```\n[code](nowhere.md)\n# no heading\n```\n\n"
        "[f](gone.md) [g](other.md#twice-2) [h](#no-heading)\n"
    )
    assert dead_links(page) == ["gone.md", "other.md#twice-2", "#no-heading"]


def test_the_pages_that_sources_name_exist():
    """Hints of commands and comments name pages by their path from the root."""
    missing = []
    for path in tracked():
        if named(path) not in {"CHANGELOG.md", named(Path(__file__))}:
            data = path.read_bytes()
            if b"\0" not in data:
                missing += [(named(path), name) for name in NAMED.findall(data.decode()) if not (ROOT / name).exists()]
    assert missing == []


def test_the_first_page_lists_every_page_once_in_its_section():
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


def test_pages_lie_in_the_folders_of_the_sections():
    folders = {path.relative_to(DOCS).parts[0] for path in DOCS.rglob("*.md")}
    assert folders == {"index.md", "decisions", *SECTIONS.values()}


def test_the_list_of_decisions_has_every_one():
    listed = links((DOCS / "decisions/README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))


def test_the_first_line_of_every_page_is_its_title():
    """A code host, the site's navigation and a search show it."""
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"\A<!--.*?-->\s*", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert text.startswith("# "), page
        assert anchors(text), page
