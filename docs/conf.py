"""Sphinx settings of the documentation site; scripts/site builds it."""

import re
from pathlib import Path

from sphinx.application import Sphinx

project = "cloudgpu"
author = "cloudgpu"
version = re.search(
    r'__version__ = "(.+)"', (Path(__file__).parents[1] / "cloudgpu/version.py").read_text(encoding="utf-8")
)[1]
release = version

extensions = ["myst_parser"]
exclude_patterns = ["conf.py"]
# Headings get the anchors that code hosts give them, so a link works there and on the site.
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"cloudgpu {version}"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
nitpicky = True
# `$` and other prompts of shell examples are text, not a language.
highlight_language = "none"
# `--yes` stays what it is: typographic dashes cannot be typed into a shell.
smartquotes = False

SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
ENTRY = re.compile(r"^- \[[^\]]+\]\(([\w./-]+)\.md\)", re.MULTILINE)


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Make the navigation from the lists of the first page, so that it stays readable without Sphinx."""
    if page == "index":
        for title, body in SECTION.findall(source[0]):
            entries = "\n".join(ENTRY.findall(body))
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```\n"
    elif page == "decisions/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"


def setup(app: Sphinx) -> None:
    """Connect the navigation."""
    app.connect("source-read", add_navigation)
