"""Simulated mounts: each file system is represented by a directory that all nodes share.

The simulated AWS decides which sources a node may mount, based on security groups, zones and attachments. All other
mounts fail, as they would on AWS.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_LINKED = """\
target=$1
mkdir -p "$(dirname "$target")" && { [ ! -d "$target" ] || [ -L "$target" ] || rmdir "$target" 2>/dev/null ||
    mv "$target" "$target.under-the-mount"; } && ln -sfn "$2" "$target"
"""
LINK_COMMAND = ("/bin/sh", "-c", _LINKED, "mount")
"""Command that simulates mounting. Append the mount point and the backing directory as arguments."""
_UNLINKED = """\
[ ! -L "$1" ] || rm "$1"
if [ -d "$1.under-the-mount" ]; then mv "$1.under-the-mount" "$1"; else mkdir -p "$1"; fi
"""
UNLINK_COMMAND = ("/bin/sh", "-c", _UNLINKED, "umount")
"""Command that simulates unmounting. Append the mount point as an argument."""
_APPEAR = 'for disk in "$@"; do mkdir -p "${disk%/*}" && : >>"$disk"; done'
_DEVICES = "/dev/"
_VALUED = (
    *("-t", "-o", "--types", "--options", "--region", "--dir-mode", "--file-mode"),
    *("--cache", "--prefix", "--endpoint-url"),
)
_OF_BUCKETS = ("s3fs", "mount-s3")
_MOUNT_FAILED, _NOTHING_FOUND, _NOT_MOUNTED = 32, 2, 32


@dataclass(frozen=True)
class MountRequest:
    """A mount as requested on the command line."""

    source: str
    target: str
    read_only: bool
    service: str = ""
    """Endpoint URL of a bucket; empty for AWS's default endpoint."""
    prefix: str = ""


@dataclass(frozen=True)
class Mounted:
    """An active mount, which lasts until it is unmounted or the node is powered off.

    Attributes:
        service: Endpoint URL of a bucket mounted with s3fs; empty for other mounts.
        bucket: Name of the bucket mounted with s3fs, followed by its prefix if there is one; empty for other mounts.
    """

    target: str
    folder: str
    read_only: bool
    service: str = ""
    bucket: str = ""


@dataclass(frozen=True)
class MountResult:
    """The result of a mount command: its output and the changes that it makes."""

    stderr: str = ""
    stdout: str = ""
    exit_code: int = 0
    mounted: Mounted | None = None
    unmounted: Mounted | None = None
    formatted: str = ""


MOUNT_PROGRAMS = frozenset({"mount", "umount", "mountpoint", "blkid", "mkfs.ext4", "mount-s3", "s3fs"})


@dataclass(frozen=True)
class NodeMounts:
    """The storage that a node may mount, and its active mounts.

    Attributes:
        mountable: Mapping from each mount source to the name of the directory that backs the source.
        root: Path of the node's files on this machine; empty for a node with its own root.
        formatted: Names of the directories that back formatted volumes.
    """

    mountable: Mapping[str, str] = field(default_factory=dict)
    mounted: tuple[Mounted, ...] = ()
    root: str = ""
    formatted: frozenset[str] = frozenset()

    def folder(self, source: str) -> str:
        """Return the name of the directory that backs a source, or an empty string if the node may not mount it."""
        inside = source.removeprefix(self.root) if self.root else source
        return self.mountable.get(inside.removesuffix(":/"), "") or self.mountable.get(inside.partition(":/")[0], "")


NO_MOUNTS = NodeMounts()


def simulate_program(program: str, arguments: Sequence[str], disks: NodeMounts) -> MountResult:
    """Simulate a command that mounts, unmounts, formats or queries file systems."""
    if program == "mountpoint":
        return _mountpoint(arguments, disks)
    if program == "umount":
        return _unmount(arguments, disks)
    if program == "blkid":
        return _blkid(arguments, disks)
    if program == "mkfs.ext4":
        return _format(arguments, disks)
    return _mount(program, parse_mount_arguments(arguments), disks)


def parse_mount_arguments(arguments: Sequence[str]) -> MountRequest | None:
    """Parse the arguments of a mount command. Return None unless they contain exactly one source and one target."""
    positional: list[str] = []
    options: list[str] = []
    named: dict[str, str] = {}
    remaining = iter(arguments)
    for word in remaining:
        if word in _VALUED:
            named[word] = next(remaining, "")
            options.append(named[word])
        elif word.startswith("-"):
            options.append(word.removeprefix("--").replace("read-only", "ro"))
        else:
            positional.append(word)
    if len(positional) != len(("source", "target")):
        return None
    listed = {item for option in options for item in option.split(",")}
    by_option = next((item.partition("=")[2] for item in sorted(listed) if item.startswith("url=")), "")
    prefix = named.get("--prefix", "").strip("/")
    return MountRequest(positional[0], positional[1], "ro" in listed, named.get("--endpoint-url", by_option), prefix)


def device_creation_command(mountable: Mapping[str, str], root: str) -> list[str]:
    """Return the command that creates devices for attached volumes in the node's `/dev`, or an empty list."""
    disks = [f"{root}{source}" for source in sorted(mountable) if source.startswith(_DEVICES)]
    return ["/bin/sh", "-c", _APPEAR, "udev", *disks] if disks else []


def _mount(program: str, request: MountRequest | None, disks: NodeMounts) -> MountResult:
    if request is None:
        return MountResult(stderr=f"{program}: simulated: expected a source and a directory\n", exit_code=1)
    folder = disks.folder(request.source)
    if not folder:
        error = "no such device" if _DEVICES in request.source else "Connection timed out"
        text = f"{program}: {request.target}: {error} (simulated: this node cannot reach {request.source})\n"
        return MountResult(stderr=text, exit_code=_MOUNT_FAILED)
    if _DEVICES in request.source and folder not in disks.formatted:
        text = f"{program}: {request.target}: wrong fs type, bad option, bad superblock on {request.source}\n"
        return MountResult(stderr=text, exit_code=_MOUNT_FAILED)
    if program in _OF_BUCKETS and request.service.startswith("http://127.0.0.1:"):
        bucket = f"{request.source}:/{request.prefix}" if request.prefix else request.source
        return MountResult(mounted=Mounted(request.target, folder, request.read_only, request.service, bucket))
    return MountResult(mounted=Mounted(request.target, folder, request.read_only))


def _unmount(arguments: Sequence[str], disks: NodeMounts) -> MountResult:
    target = next((word for word in reversed(arguments) if not word.startswith("-")), "")
    active = next((mount for mount in reversed(disks.mounted) if mount.target == target), None)
    if active is None:
        return MountResult(stderr=f"umount: {target}: not mounted.\n", exit_code=_NOT_MOUNTED)
    return MountResult(unmounted=active)


def _mountpoint(arguments: Sequence[str], disks: NodeMounts) -> MountResult:
    targets = [word for word in arguments if not word.startswith("-")]
    is_mounted = bool(targets) and any(mount.target == targets[-1] for mount in disks.mounted)
    word = "is" if is_mounted else "is not"
    text = "" if "-q" in arguments or not targets else f"{targets[-1]} {word} a mountpoint\n"
    return MountResult(stdout=text, exit_code=0 if is_mounted else _NOT_MOUNTED)


def _blkid(arguments: Sequence[str], disks: NodeMounts) -> MountResult:
    devices = [word for word in arguments if disks.folder(word) in disks.formatted]
    if not devices:
        return MountResult(exit_code=_NOTHING_FOUND)
    return MountResult(stdout="".join(f'{path}: TYPE="ext4"\n' for path in devices))


def _format(arguments: Sequence[str], disks: NodeMounts) -> MountResult:
    folder = disks.folder(arguments[-1]) if arguments else ""
    if not folder:
        return MountResult(stderr=f"mkfs.ext4: {' '.join(arguments[-1:])}: no such disk\n", exit_code=1)
    return MountResult(formatted=folder)
