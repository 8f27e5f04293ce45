"""Extract the accepted filters of EC2 operations from the documentation in botocore's service model.

The rehearsal cloud rejects every other filter, as EC2 does. `scripts/filter_names.py` prints the table for the
installed botocore; `--write` replaces the committed one. tests/unit/rehearsal/test_filter_names.py compares the two.
"""

import gzip
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import botocore

TABLE = Path(__file__).resolve().parents[1] / "cloudgpu/rehearsal/aws_api/ec2/filter-names.json"
_MODEL = Path(botocore.__file__).parent / "data/ec2/2016-11-15/service-2.json.gz"
_ALIASES = re.compile(r"You can also use (.+?) as the filter names?\b", re.IGNORECASE)
_UNDOCUMENTED = {"DescribeVpcs": ("isDefault",)}
"""Names that EC2 accepts although botocore does not document them: Terraform's AWS provider and dstack send them."""
_QUOTED = re.compile(r"`([^`]+)`")


def table() -> dict[str, Any]:
    """Return the filters of every operation whose documentation lists them, and the botocore version they are from.

    `tag:*` stands for the filters `tag:KEY`.
    """
    with gzip.open(_MODEL, "rt", encoding="utf-8") as stream:
        model = json.load(stream)
    operations = {}
    for name, operation in sorted(model["operations"].items()):
        documentation = _filter_documentation(model["shapes"], operation)
        names = filter_names(documentation) if documentation else []
        if names:
            operations[name] = sorted({*names, *_UNDOCUMENTED.get(name, ())})
    return {"botocore": botocore.__version__, "operations": operations}


def filter_names(documentation: str) -> list[str]:
    """Return the filters that the documentation of a `Filters` parameter lists, sorted."""
    parser = _Items()
    parser.feed(documentation)
    names = set()
    for item in parser.items:
        listed = _QUOTED.findall(item)
        if not listed or not item.startswith("`"):
            continue
        aliases = [alias for text in _ALIASES.findall(item) for alias in _QUOTED.findall(text)]
        for name in (text.strip() for text in (listed[0], *aliases)):
            is_tag = name == "tag" or name.startswith("tag:")
            names.add("tag:*" if is_tag else name)
    return sorted(names)


def _filter_documentation(shapes: dict[str, Any], operation: dict[str, Any]) -> str:
    members = shapes[operation["input"]["shape"]].get("members", {}) if "input" in operation else {}
    for member in members.values():
        if shapes[member["shape"]].get("member", {}).get("shape") == "Filter":
            return str(member.get("documentation", ""))
    return ""


class _Items(HTMLParser):
    """Collects the text of the items of the outer list; code is in backquotes."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[str] = []
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - the base's
        self._depth += tag == "ul"
        if tag == "li" and self._depth == 1:
            self.items.append("")
        if tag == "code":
            self._add("`")

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "ul"
        if tag == "code":
            self._add("`")

    def handle_data(self, data: str) -> None:
        self._add(data)

    def _add(self, text: str) -> None:
        if self._depth == 1 and self.items and (self.items[-1] or text.strip()):
            self.items[-1] += text


if __name__ == "__main__":
    extracted = table()
    lines = [f"  {json.dumps(name)}: {json.dumps(names)}" for name, names in extracted["operations"].items()]
    head = f'{{\n "botocore": {json.dumps(extracted["botocore"])},\n "operations": {{\n'
    text = head + ",\n".join(lines) + "\n }\n}\n"
    if "--write" in sys.argv[1:]:
        TABLE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
