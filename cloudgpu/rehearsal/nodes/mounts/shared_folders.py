"""Mounts without mounting: each file system is represented by one folder that all nodes share.

The simulated AWS decides what a node may mount, by security group, zone and attachment. Everything else fails as on
AWS.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_LINKED = """\
target=$1
mkdir -p "$(dirname "$target")" && { [ ! -d "$target" ] || [ -L "$target" ] || rmdir "$target" 2>/dev/null ||
    mv "$target" "$target.under-the-mount"; } && ln -sfn "$2" "$target"
"""
LINK = ("/bin/sh", "-c", _LINKED, "mount")
"""Followed by the mount's directory and what it shows."""
_UNLINKED = """\
[ ! -L "$1" ] || rm "$1"
if [ -d "$1.under-the-mount" ]; then mv "$1.under-the-mount" "$1"; else mkdir -p "$1"; fi
"""
UNLINK = ("/bin/sh", "-c", _UNLINKED, "umount")
"""Followed by the mount's directory."""
_APPEAR = 'for disk in "$@"; do mkdir -p "${disk%/*}" && : >>"$disk"; done'
_DEVICES = "/dev/"
_VALUED = (
    *("-t", "-o", "--types", "--options", "--region", "--dir-mode", "--file-mode"),
    *("--cache", "--prefix", "--endpoint-url"),
)
_OF_BUCKETS = ("s3fs", "mount-s3")
_MOUNT_FAILED, _NOTHING_FOUND, _NOT_MOUNTED = 32, 2, 32


@dataclass(frozen=True)
class Asked:
    """A mount as named on the command line."""

    source: str
    target: str
    read_only: bool
    service: str = ""
    """Endpoint URL of a bucket; empty for AWS."""
    prefix: str = ""


@dataclass(frozen=True)
class Mounted:
    """An active mount, until it is unmounted or the node is powered off.

    Attributes:
        service: Endpoint of a bucket mounted with s3fs; `bucket` is its name with the prefix.
    """

    target: str
    folder: str
    read_only: bool
    service: str = ""
    bucket: str = ""


@dataclass(frozen=True)
class MountResult:
    """The output of a mount command, and the changes that it makes."""

    stderr: str = ""
    stdout: str = ""
    exit_code: int = 0
    mounted: Mounted | None = None
    unmounted: Mounted | None = None
    formatted: str = ""


PROGRAMS = frozenset({"mount", "umount", "mountpoint", "blkid", "mkfs.ext4", "mount-s3", "s3fs"})


@dataclass(frozen=True)
class Disks:
    """The storage that a node may mount, and its active mounts.

    Attributes:
        mountable: Source as named in mounts -> the folder that represents it.
        root: Path prefix of the node on the machine; empty for a node with a root of its own.
        formatted: Folders of volumes with a file system.
    """

    mountable: Mapping[str, str] = field(default_factory=dict)
    mounted: tuple[Mounted, ...] = ()
    root: str = ""
    formatted: frozenset[str] = frozenset()

    def folder(self, source: str) -> str:
        """Return the folder that backs a source; empty if the node may not mount it."""
        inside = source.removeprefix(self.root) if self.root else source
        return self.mountable.get(inside.removesuffix(":/"), "") or self.mountable.get(inside.partition(":/")[0], "")


NO_DISKS = Disks()


def answer(program: str, arguments: Sequence[str], disks: Disks) -> MountResult:
    """Simulate a program that mounts, formats or lists mounts."""
    if program == "mountpoint":
        return _mountpoint(arguments, disks)
    if program == "umount":
        return _unmount(arguments, disks)
    if program == "blkid":
        return _blkid(arguments, disks)
    if program == "mkfs.ext4":
        return _format(arguments, disks)
    return _mount(program, asked(arguments), disks)


def asked(arguments: Sequence[str]) -> Asked | None:
    """Return source and target of a mount command, or None if it names neither or only one."""
    places: list[str] = []
    options: list[str] = []
    named: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        if word in _VALUED:
            named[word] = next(words, "")
            options.append(named[word])
        elif word.startswith("-"):
            options.append(word.removeprefix("--").replace("read-only", "ro"))
        else:
            places.append(word)
    if len(places) != len(("source", "target")):
        return None
    listed = {item for option in options for item in option.split(",")}
    by_option = next((item.partition("=")[2] for item in sorted(listed) if item.startswith("url=")), "")
    prefix = named.get("--prefix", "").strip("/")
    return Asked(places[0], places[1], "ro" in listed, named.get("--endpoint-url", by_option), prefix)


def appearing(mountable: Mapping[str, str], root: str) -> list[str]:
    """Return the command that creates devices for attached volumes in the node's `/dev`; empty without volumes."""
    disks = [f"{root}{source}" for source in sorted(mountable) if source.startswith(_DEVICES)]
    return ["/bin/sh", "-c", _APPEAR, "udev", *disks] if disks else []


def _mount(program: str, wanted: Asked | None, disks: Disks) -> MountResult:
    if wanted is None:
        return MountResult(stderr=f"{program}: simulated: expected a source and a directory\n", exit_code=1)
    folder = disks.folder(wanted.source)
    if not folder:
        why = "no such device" if _DEVICES in wanted.source else "Connection timed out"
        text = f"{program}: {wanted.target}: {why} (simulated: this node reaches no {wanted.source})\n"
        return MountResult(stderr=text, exit_code=_MOUNT_FAILED)
    if _DEVICES in wanted.source and folder not in disks.formatted:
        text = f"{program}: {wanted.target}: wrong fs type, bad option, bad superblock on {wanted.source}\n"
        return MountResult(stderr=text, exit_code=_MOUNT_FAILED)
    if program in _OF_BUCKETS and wanted.service.startswith("http://127.0.0.1:"):
        bucket = f"{wanted.source}:/{wanted.prefix}" if wanted.prefix else wanted.source
        return MountResult(mounted=Mounted(wanted.target, folder, wanted.read_only, wanted.service, bucket))
    return MountResult(mounted=Mounted(wanted.target, folder, wanted.read_only))


def _unmount(arguments: Sequence[str], disks: Disks) -> MountResult:
    place = next((word for word in reversed(arguments) if not word.startswith("-")), "")
    standing = next((mount for mount in reversed(disks.mounted) if mount.target == place), None)
    if standing is None:
        return MountResult(stderr=f"umount: {place}: not mounted.\n", exit_code=_NOT_MOUNTED)
    return MountResult(unmounted=standing)


def _mountpoint(arguments: Sequence[str], disks: Disks) -> MountResult:
    places = [word for word in arguments if not word.startswith("-")]
    there = bool(places) and any(mount.target == places[-1] for mount in disks.mounted)
    word = "is" if there else "is not"
    text = "" if "-q" in arguments or not places else f"{places[-1]} {word} a mountpoint\n"
    return MountResult(stdout=text, exit_code=0 if there else _NOT_MOUNTED)


def _blkid(arguments: Sequence[str], disks: Disks) -> MountResult:
    found = [word for word in arguments if disks.folder(word) in disks.formatted]
    if not found:
        return MountResult(exit_code=_NOTHING_FOUND)
    return MountResult(stdout="".join(f'{path}: TYPE="ext4"\n' for path in found))


def _format(arguments: Sequence[str], disks: Disks) -> MountResult:
    folder = disks.folder(arguments[-1]) if arguments else ""
    if not folder:
        return MountResult(stderr=f"mkfs.ext4: {' '.join(arguments[-1:])}: no such disk\n", exit_code=1)
    return MountResult(formatted=folder)
