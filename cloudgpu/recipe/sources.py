"""Where a dataset lies: the address that a recipe writes, read into its parts. Pure."""

import re
from dataclasses import dataclass
from typing import Final, Literal

SourceKind = Literal["s3", "oss", "efs", "lustre", "nfs", "https", "local"]

_SCHEME: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://(.*)$")
_BUCKET: Final = re.compile(r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")
_FILE_SYSTEM: Final = re.compile(r"^fs-[0-9a-f]{8,17}$")
_HOST: Final = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?$")
_SNAPSHOT: Final = re.compile(r"^(?:ebs://)?snap-[0-9a-f]{8,17}$")
_FORMS: Final = (
    "s3://bucket/prefix, oss://bucket/prefix, efs://fs-0123456789abcdef0, lustre://host/name, nfs://host/path, "
    "https://host/file, or a path relative to the recipe"
)

MOUNTED: Final[frozenset[SourceKind]] = frozenset({"oss", "efs", "lustre", "nfs"})
"""What can only be mounted."""
COPIED: Final[frozenset[SourceKind]] = frozenset({"https", "local"})
"""What can only be copied; `s3` can be both."""


@dataclass(frozen=True)
class Source:
    """An address in parts.

    Attributes:
        place: Bucket, host or id of a file system; empty for what lies on the caller's own machine.
        path: Below it, without slashes at its ends; of Lustre the mount name comes first.
    """

    kind: SourceKind
    place: str
    path: str
    text: str

    @property
    def name(self) -> str:
        """The last part of the path: the name of a single file."""
        return self.path.rpartition("/")[2]


def source_of(text: str) -> Source:
    """Read the address of a dataset.

    Raises:
        ValueError: Nobody can read it; the message says what would do.
    """
    if _SNAPSHOT.match(text):
        message = (
            f"{text} is a snapshot of a disk; make a disk of it: "
            "storage: [{name: ..., to: ..., mode: ro, make: {kind: ebs, snapshot: snap-...}}]"
        )
        raise ValueError(message)
    match = _SCHEME.match(text)
    if match is None:
        return Source("local", "", text, text)
    scheme, rest = match[1].lower(), match[2]
    place, _, path = rest.partition("/")
    # The `path` of an address in HTTP stays as it is: a slash at its end means a directory.
    found = Source(_kind(scheme, text), place, path if scheme in ("http", "https") else path.strip("/"), text)
    _refuse_malformed(found)
    return found


def _kind(scheme: str, text: str) -> SourceKind:
    kinds: dict[str, SourceKind] = {
        "s3": "s3",
        "oss": "oss",
        "efs": "efs",
        "lustre": "lustre",
        "nfs": "nfs",
        "https": "https",
        "http": "https",
    }
    if scheme not in kinds:
        message = f"{text}: nothing is known of {scheme}://; expected {_FORMS}"
        raise ValueError(message)
    return kinds[scheme]


def _refuse_malformed(source: Source) -> None:
    wrong = ""
    if source.kind in ("s3", "oss"):
        wrong = "" if _BUCKET.match(source.place) else f"{source.place!r} is no name of a bucket"
    elif source.kind == "efs":
        wrong = (
            "" if _FILE_SYSTEM.match(source.place) else "expected efs://fs-0123456789abcdef0, with a path if need be"
        )
    elif not _HOST.match(source.place):
        wrong = f"{source.place!r} is no name of a host" + ("; keep credentials out" if "@" in source.place else "")
    elif source.kind == "lustre" and not source.path:
        wrong = "expected lustre://host/name, where `name` is the file system's mount name"
    elif source.kind == "https" and not source.path:
        wrong = "expected a file, or a directory with a slash at its end and a manifest"
    if ".." in source.path.split("/") or any(ord(one) < ord(" ") for one in source.text):
        wrong = "expected a plain path"
    if wrong:
        message = f"{source.text}: {wrong}"
        raise ValueError(message)
