"""Add scan results to the inventory file without changing existing fields, comments or order."""

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML


def fill_scanned_fields(text: str, scanned: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, list[str]]]:
    """Return the file's text with the scanned fields added, and the names of the added fields by host.

    Fields that are already set for the host or under `defaults` are not changed. Empty scanned values are ignored.
    """
    yaml = YAML(typ="rt")
    yaml.width = 10_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    document = yaml.load(text)
    shared = document.get("defaults") or {}
    added: dict[str, list[str]] = {}
    for entry in document["hosts"]:
        for field, value in scanned.get(entry["name"], {}).items():
            if value not in (None, "", ()) and field not in entry and field not in shared:
                entry[field] = value
                added.setdefault(entry["name"], []).append(field)
    if not added:
        return text, added
    written = io.StringIO()
    yaml.dump(document, written)
    return written.getvalue(), added
