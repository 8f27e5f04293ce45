"""Parse the links and heading anchors of a documentation page."""

import re
from pathlib import Path

_FENCED = re.compile(r"^([ \t]*)(`{3,}|~{3,}).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(`+)(?:(?!\1).)+\1", re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """Return the anchors that a code host generates for the headings of a page."""
    found: dict[str, int] = {}
    names = set()
    for title in _HEADING.findall(_FENCED.sub("", text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        names.add(f"{slug}-{count}" if count else slug)
    return names


def links(text: str) -> list[str]:
    """Return the link targets of a page, ignoring code."""
    return _LINK.findall(_SPAN.sub("`", _FENCED.sub("", text)))


def dead_links(page: Path) -> list[str]:
    """Return the links of a page whose file or heading does not exist."""
    dead = []
    for target in links(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
            dead.append(target)
    return dead
