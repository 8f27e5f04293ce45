"""List the external addresses that the pages of a built site load. Exit with status 1 if there are any."""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_FOREIGN = re.compile(r"(?:https?:)?//", re.IGNORECASE)
_IN_STYLE = re.compile(r"(?:url\(|@import\s)\s*['\"]?((?:https?:)?//[^'\")\s;]+)", re.IGNORECASE)
# Values of `rel` for which browsers do not fetch the target of a `<link>`.
_NOT_FETCHED = {"canonical", "alternate", "author", "license", "next", "prev", "search", "index", "help"}


class _Page(HTMLParser):
    """Parser that collects the external addresses that a page loads. Hyperlinks are not included."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._style = tag == "style"
        self._add(given.get("src", ""), given.get("poster", ""))
        self._add(*(part.strip() for part in given.get("srcset", "").split(",")))
        if tag == "object":
            self._add(given.get("data", ""))
        if tag == "link" and not set(given.get("rel", "").lower().split()) <= _NOT_FETCHED:
            self._add(given.get("href", ""))
        self.loaded += _IN_STYLE.findall(given.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._style:
            self.loaded += _IN_STYLE.findall(data)

    def handle_endtag(self, tag: str) -> None:
        self._style = self._style and tag != "style"

    def _add(self, *addresses: str) -> None:
        self.loaded += [address for address in addresses if _FOREIGN.match(address)]


def foreign(site: Path) -> Iterator[tuple[str, str]]:
    """Yield (file, address) for each external address that a file of the site loads."""
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            page = _Page()
            page.feed(path.read_text(encoding="utf-8"))
            addresses = page.loaded
        elif path.suffix == ".css":
            addresses = _IN_STYLE.findall(path.read_text(encoding="utf-8"))
        else:
            continue
        yield from ((str(path.relative_to(site)), address) for address in addresses)


def main() -> int:
    """Print the addresses and return the exit status."""
    addresses = list(foreign(Path(sys.argv[1])))
    for name, address in addresses:
        print(f"{name} loads {address}: the site must not load external resources")
    return 1 if addresses else 0


if __name__ == "__main__":
    sys.exit(main())
