"""Mounts of simulated nodes: permitted mounts, AWS-like failures, and volume formatting."""

from dataclasses import replace

import pytest

from cloudgpu.rehearsal.nodes.shared_folders import (
    Mounted,
    NodeMounts,
    device_creation_command,
    simulate_program,
)
from cloudgpu.rehearsal.nodes.shared_storage import (
    SharedFolderStore,
    create_shared_folder,
    delete_orphaned_folders,
)

EFS, LUSTRE = "fs-1.efs.us-east-1.amazonaws.com", "fs-2.fsx.us-east-1.amazonaws.com@tcp:/abc"
DISK = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol01"
MAY = {EFS: "fs-1", LUSTRE: "fs-2", DISK: "vol-01", "bucket": "bucket"}
DISKS = NodeMounts(MAY, (), "/node", frozenset())


@pytest.mark.parametrize(
    ("program", "line", "mounted"),
    [
        ("mount", f"-t nfs4 -o nfsvers=4.1,hard {EFS}:/ /node/homes", Mounted("/node/homes", "fs-1", False)),
        ("mount", f"-t lustre -o flock,ro {LUSTRE} /node/sets", Mounted("/node/sets", "fs-2", True)),
        ("mount-s3", "--allow-other --read-only --dir-mode 0777 --region r bucket /b", Mounted("/b", "bucket", True)),
        ("mount-s3", "--allow-other --allow-delete --region r bucket /b", Mounted("/b", "bucket", False)),
        ("s3fs", "bucket /b -o iam_role=auto -o ro", Mounted("/b", "bucket", True)),
    ],
)
def test_permitted_mounts_succeed(program, line, mounted):
    said = simulate_program(program, line.split(), DISKS)
    assert (said.exit_code, said.mounted) == (0, mounted)


def test_mount_without_network_access_times_out():
    said = simulate_program("mount", ["-t", "nfs4", "fs-9.efs.us-east-1.amazonaws.com:/", "/node/x"], DISKS)
    assert (said.exit_code, said.mounted) == (32, None)
    assert "timed out (simulated" in said.stderr


def test_volume_can_be_mounted_only_after_formatting():
    mount = ["-o", "noatime", f"/node{DISK}", "/node/disk"]
    assert simulate_program("mount", mount, DISKS).exit_code == 32
    assert simulate_program("blkid", ["-p", f"/node{DISK}"], DISKS).exit_code == 2
    formatted = simulate_program("mkfs.ext4", ["-q", f"/node{DISK}"], DISKS).formatted
    disks = replace(DISKS, formatted=frozenset({formatted}))
    assert simulate_program("blkid", ["-p", f"/node{DISK}"], disks).exit_code == 0
    assert simulate_program("mount", mount, disks).mounted == Mounted("/node/disk", "vol-01", read_only=False)
    assert simulate_program("mkfs.ext4", ["/node/dev/sdz"], DISKS).exit_code == 1


def test_mountpoint_succeeds_only_for_mounted_paths():
    disks = replace(DISKS, mounted=(Mounted("/node/homes", "fs-1", read_only=False),))
    assert simulate_program("mountpoint", ["-q", "/node/homes"], disks).exit_code == 0
    assert simulate_program("mountpoint", ["-q", "/node/homes"], DISKS).exit_code == 32


def test_attached_volumes_get_device_files():
    assert device_creation_command(MAY, "/node")[-1] == f"/node{DISK}"
    assert device_creation_command({EFS: "fs-1"}, "") == []


def test_shared_folder_exists_until_its_file_system_is_deleted(tmp_path):
    create_shared_folder(tmp_path)
    shared = SharedFolderStore(tmp_path)
    written, read = (shared.path(Mounted("/x", "fs-1", read_only=only)) for only in (False, True))
    assert written != read
    (tmp_path / "shared/fs-1/file").write_text("x")
    shared.format("vol-01")
    assert shared.formatted() == {"vol-01"}
    delete_orphaned_folders(tmp_path, frozenset({"fs-1", "vol-01"}))
    assert (tmp_path / "shared.ro/fs-1/file").read_text() == "x"
    delete_orphaned_folders(tmp_path, frozenset())
    assert not (tmp_path / "shared/fs-1").exists()
    assert shared.formatted() == frozenset()
