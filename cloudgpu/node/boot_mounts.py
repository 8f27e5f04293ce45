"""The shell functions with which a node mounts storage at every boot; part of the bootstrap script.

Datasets of a run are mounted later, by the agent: see `dataset_mounts.py`.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cloudgpu.node.dataset_mounts import LUSTRE, MOUNTPOINT_PACKAGE, NFS, lustre_source, s3_endpoint
from cloudgpu.recipe.sources import StorageKind


@dataclass(frozen=True)
class Mount:
    """A storage mount: a file system, volume or bucket and its mount point.

    Attributes:
        source: DNS name of a file system, ID of a volume, or name of a bucket.
        mount_name: Mount name of a Lustre file system.
        client: Program that mounts a bucket.
    """

    name: str
    kind: StorageKind
    to: str
    source: str
    region: str
    read_only: bool = False
    mount_name: str = ""
    client: str = "mount-s3"

    @property
    def step(self) -> str:
        """Name of the bootstrap step that mounts the storage."""
        return f"mount_{self.name.replace('-', '_')}"


def parse_kind(text: str) -> StorageKind:
    """Return the storage kind that a tag value specifies."""
    for kind in _LINES:
        if kind == text:
            return kind
    message = f"unknown kind of storage {text!r}"
    raise ValueError(message)


def mount_functions(mount: Mount) -> str:
    """Return the shell functions that check and perform the mount."""
    where = f'"$root"{shlex.quote(mount.to)}'
    body = [*_LINES[mount.kind](mount, where)]
    if not mount.read_only and mount.kind != "s3":
        body.append(f"open_to_all {where}")
    action = "\n".join(f"  {line}" for line in body)
    return (
        f"# {mount.name}: {mount.kind} at {mount.to}\n"
        f"check_{mount.step}() {{\n  mountpoint -q {where}\n}}\n\n"
        f"do_{mount.step}() {{\n  mkdir -p {where}\n{action}\n}}\n"
    )


def volume_device_path(volume_id: str) -> str:
    """Return a volume's device path on a Nitro node. The path does not depend on the NVMe controller number."""
    return f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{volume_id.replace('-', '')}"


def _efs(mount: Mount, where: str) -> Iterator[str]:
    yield "command -v mount.nfs4 || packages nfs-common"
    yield f"mount -t nfs4 -o {NFS}{_read_only(mount)} {shlex.quote(f'{mount.source}:/')} {where}"


def _lustre(mount: Mount, where: str) -> Iterator[str]:
    source = shlex.quote(lustre_source(mount.source, mount.mount_name))
    yield f"mount -t lustre -o {LUSTRE}{_read_only(mount)} {source} {where}"


def _ebs(mount: Mount, where: str) -> Iterator[str]:
    disk = shlex.quote(volume_device_path(mount.source))
    yield f'appears "$root"{disk}'
    if not mount.read_only:
        yield f'format_if_empty "$root"{disk}'
    yield f'mount -o noatime{_read_only(mount)} "$root"{disk} {where}'


def _s3(mount: Mount, where: str) -> Iterator[str]:
    bucket, region = shlex.quote(mount.source), shlex.quote(mount.region)
    if mount.client == "s3fs":
        site = shlex.quote(s3_endpoint(mount.region))
        options = f'-o iam_role="$(role_of_node)" -o allow_other -o umask=0000 -o endpoint={region} -o url={site}'
        yield "command -v s3fs || packages s3fs curl"
        yield f"s3fs {bucket} {where} {options}{' -o ro' if mount.read_only else ''}"
        return
    rights = "--read-only" if mount.read_only else "--allow-delete --allow-overwrite"
    yield f"command -v mount-s3 || package_from {MOUNTPOINT_PACKAGE}"
    yield (f"mount-s3 --allow-other {rights} --dir-mode 0777 --file-mode 0666 --region {region} {bucket} {where}")


_LINES: Final[Mapping[StorageKind, Callable[[Mount, str], Iterator[str]]]] = {
    "efs": _efs,
    "lustre": _lustre,
    "ebs": _ebs,
    "s3": _s3,
}


def _read_only(mount: Mount) -> str:
    return ",ro" if mount.read_only else ""
