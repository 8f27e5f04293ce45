"""The source of a dataset and its parts, and the kinds of storage and their limits. Imports no pydantic."""

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

SourceKind = Literal["s3", "oss", "efs", "lustre", "nfs", "https", "local"]

_SCHEME: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://(.*)$")
_BUCKET: Final = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_FILE_SYSTEM: Final = re.compile(r"^fs-[0-9a-f]{8,17}$")
_WILDCARDS: Final = re.compile(r"[*?]")
_MAX_KEY_BYTES: Final = 1024
"""S3's limit on the length of a key in UTF-8."""
_HOST: Final = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?$")
_SNAPSHOT: Final = re.compile(r"^(?:ebs://)?snap-[0-9a-f]{8,17}$")
_FORMS: Final = (
    "s3://bucket/prefix, oss://bucket/prefix, efs://fs-0123456789abcdef0, lustre://host/name, nfs://host/path, "
    "https://host/file, or a path relative to the recipe"
)

MOUNTED: Final[frozenset[SourceKind]] = frozenset({"oss", "efs", "lustre", "nfs"})
"""Source kinds that can only be mounted."""
COPIED: Final[frozenset[SourceKind]] = frozenset({"https", "local"})
"""Source kinds that can only be copied. `s3` supports both."""
StorageKind = Literal["efs", "lustre", "ebs", "s3"]
STORAGE_KINDS: Final[tuple[StorageKind, ...]] = get_args(StorageKind)
ZONAL: Final = frozenset({"lustre", "ebs"})
"""Kinds that exist in a single zone."""
FILE_SYSTEMS: Final = frozenset({"efs", "lustre"})
"""Kinds that nodes mount over the network of one VPC, as members of a security group."""
Deployment = Literal["scratch_2", "persistent_2"]
"""Deployment types of a Lustre file system."""
SMALLEST_LUSTRE_GIB: Final = 1200
LUSTRE_STEP_GIB: Final = 2400
"""Larger Lustre file systems have a multiple of this size."""


@dataclass(frozen=True)
class Source:
    """A parsed dataset source.

    Attributes:
        place: Bucket, host or file system ID; empty for a local path.
        path: Path below `place`, without leading or trailing slashes. For Lustre it starts with the mount name.
    """

    kind: SourceKind
    place: str
    path: str
    text: str

    @property
    def name(self) -> str:
        """Last component of the path: the file name if the source is a single file."""
        return self.path.rpartition("/")[2]


def source_of(text: str) -> Source:
    """Parse the source of a dataset."""
    if _SNAPSHOT.match(text):
        message = (
            f"{text} is an EBS snapshot; create a volume from it: "
            "storage: [{name: ..., to: ..., mode: ro, make: {kind: ebs, snapshot: snap-...}}]"
        )
        raise ValueError(message)
    match = _SCHEME.match(text)
    if match is None:
        return Source("local", "", text, text)
    scheme, rest = match[1].lower(), match[2]
    place, _, path = rest.partition("/")
    # An HTTP path is not stripped: a trailing slash means a directory.
    source = Source(_kind(scheme, text), place, path if scheme in ("http", "https") else path.strip("/"), text)
    _reject_malformed(source)
    return source


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
        message = f"{text}: {scheme}:// is not supported; expected {_FORMS}"
        raise ValueError(message)
    return kinds[scheme]


def _reject_malformed(source: Source) -> None:
    problem = ""
    if source.kind in ("s3", "oss"):
        problem = "" if _BUCKET.fullmatch(source.place) else f"{source.place!r} is not a valid bucket name"
    elif source.kind == "efs":
        problem = (
            "" if _FILE_SYSTEM.match(source.place) else "expected efs://fs-0123456789abcdef0, optionally with a path"
        )
    elif not _HOST.match(source.place):
        problem = f"{source.place!r} is not a valid host name" + (
            "; remove the credentials" if "@" in source.place else ""
        )
    elif source.kind == "lustre" and not source.path:
        problem = "expected lustre://host/name, where `name` is the file system's mount name"
    elif source.kind == "https" and not source.path:
        problem = "expected a file, or a directory with a trailing slash and a manifest"
    if ".." in source.path.split("/") or any(ord(char) < ord(" ") for char in source.text):
        problem = "expected a path without `..` or control characters"
    if problem := problem or _key_problem(source):
        message = f"{source.text}: {problem}"
        raise ValueError(message)


def _key_problem(source: Source) -> str:
    """Return why a role cannot be allowed to access exactly this S3 key and what is below it, or an empty text.

    The cluster program checks the same before it writes the policy of the nodes' role.
    """
    key = source.path if source.kind == "s3" else ""
    if wildcard := _WILDCARDS.search(key):
        return f"{wildcard[0]!r} is not allowed, because S3 URLs are not patterns; name the directory above the objects"
    if not key.isprintable():
        return "an S3 key may contain only printable characters"
    size = len(key.encode())
    return f"an S3 key has at most {_MAX_KEY_BYTES} bytes, not {size}" if size > _MAX_KEY_BYTES else ""


def is_lustre_size(gib: int) -> bool:
    """Return True if AWS creates Lustre file systems of this size."""
    return gib == SMALLEST_LUSTRE_GIB or (gib > 0 and gib % LUSTRE_STEP_GIB == 0)
