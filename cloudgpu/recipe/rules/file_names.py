"""Validate a dataset's file names before the launch: nodes must be able to create files with these names."""

import posixpath
from collections.abc import Iterable
from typing import Final

_MAX_NAME_BYTES: Final = 255
"""Maximum length of a path component on every file system that nodes use."""
_MAX_PATH_BYTES: Final = 3000
"""Maximum length of a path below the target directory. Linux allows 4095 bytes for the whole path."""
_DOWNLOAD_SUFFIXES: Final = (".part", ".part.map")
"""Suffixes of a partially downloaded file and of the file that records its progress."""


def find_unusable_name(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first file name that a node cannot create, with the reason; None if all names are valid."""
    all_names = set(names)
    folders: dict[str, bool] = {}
    for name in sorted(all_names):
        reason = _invalid_name(name) or _clash(name, all_names, folders)
        if reason:
            return name, reason
    return None


def _invalid_name(name: str) -> str:
    if name in ("", ".") or name.startswith("/") or posixpath.normpath(name) != name or ".." in name.split("/"):
        return "the path leaves the dataset's directory or is not normalized"
    if any(ord(char) < ord(" ") or char == "\x7f" for char in name):
        return "the name contains a control character"
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > _MAX_PATH_BYTES or any(len(part) > _MAX_NAME_BYTES for part in encoded.split(b"/")):
        return "the name is longer than file systems allow"
    return ""


def _clash(name: str, all_names: set[str], folders: dict[str, bool]) -> str:
    taken = next((other for other in (name + suffix for suffix in _DOWNLOAD_SUFFIXES) if other in all_names), None)
    if taken:
        return f"{taken} is also in the dataset, but the download uses this name for a temporary file"
    folder = posixpath.dirname(name)
    if folder not in folders:
        folders[folder] = any(parent in all_names for parent in _parents(folder))
    return "its directory has the same name as another file" if folders[folder] else ""


def _parents(folder: str) -> Iterable[str]:
    while folder:
        yield folder
        folder = posixpath.dirname(folder)
