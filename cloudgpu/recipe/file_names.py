"""Which names of a dataset's files a node can write: asked where they are listed, before anything is bought."""

import posixpath
from collections.abc import Iterable
from typing import Final

_LONGEST_NAME: Final = 255
"""Bytes of one component, on every file system that nodes have."""
_LONGEST_PATH: Final = 3000
"""Bytes; the directory on the node comes before it, and 4095 are allowed in all."""
_ON_THE_WAY: Final = (".part", ".part.map")
"""What a file is called while it arrives, and where it is noted how far it is."""


def unusable(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first name that no node can write beside the others, and why; None when all can be written."""
    every = set(names)
    folders: dict[str, bool] = {}
    for name in sorted(every):
        why = _unusable_alone(name) or _clash(name, every, folders)
        if why:
            return name, why
    return None


def _unusable_alone(name: str) -> str:
    if name in ("", ".") or name.startswith("/") or posixpath.normpath(name) != name or ".." in name.split("/"):
        return "it leads out of the dataset's directory, or is no plain path"
    if any(ord(char) < ord(" ") or char == "\x7f" for char in name):
        return "it holds a control character"
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in encoded.split(b"/")):
        return "it is longer than a file system allows"
    return ""


def _clash(name: str, every: set[str], folders: dict[str, bool]) -> str:
    taken = next((other for other in (name + suffix for suffix in _ON_THE_WAY) if other in every), None)
    if taken:
        return f"{taken} is there too, and that is what it is called while it arrives"
    folder = posixpath.dirname(name)
    if folder not in folders:
        folders[folder] = any(parent in every for parent in _parents(folder))
    return "a file has the name of its directory" if folders[folder] else ""


def _parents(folder: str) -> Iterable[str]:
    while folder:
        yield folder
        folder = posixpath.dirname(folder)
