"""The root file system of an isolated node: mounts, hidden paths and dropped capabilities."""

import subprocess
from pathlib import Path

from cloudgpu.rehearsal.nodes import namespace_script
from cloudgpu.rehearsal.nodes.visible_paths import VisiblePaths

_SEEN = VisiblePaths(
    base_python="/root/py/bin/python3",
    commands=(),
    environment=(),
    readable=(Path("/root/py"), Path("/usr/share/x"), Path("/tmp/venv")),
    writable=(Path("/home/me/it's/envs"),),
    hidden=(Path("/home"), Path("/home/me/it's"), Path("/root")),
)
_CAGE = namespace_script.NamespacePaths(
    disk=Path("/home/me/it's/disk"), run=Path("/r u n"), console=Path("/c"), hostname="ip-1", surroundings=_SEEN,
    machine_mounts=("/data", "/home/other"),
)  # fmt: skip


def _lines():
    return namespace_script.init_script(_CAGE).splitlines()


def test_private_folders_are_hidden_before_shared_paths_are_mounted():
    lines = _lines()
    hidden = [number for number, line in enumerate(lines) if "; then hidden /" in line or "then hidden '" in line]
    shared = [number for number, line in enumerate(lines) if "/envs" in line or "/root/py" in line]
    assert len(hidden) == 4
    assert len(shared) == 2
    assert max(hidden) < min(shared)


def test_only_hidden_paths_are_remounted_with_software_read_only():
    text = namespace_script.init_script(_CAGE)
    assert "shared /root/py /root/py ro" in text
    assert "shared /tmp/venv /tmp/venv ro" in text
    assert "/usr/share/x" not in text
    assert """shared '/home/me/it'"'"'s/envs' '/home/me/it'"'"'s/envs' rw""" in text
    assert "shared /data /data ro" in text
    assert "/home/other" not in text


def test_init_script_is_valid_shell_and_drops_privileges():
    assert (
        subprocess.run(["sh", "-n"], input=namespace_script.init_script(_CAGE), text=True, check=False).returncode == 0
    )
    last = _lines()[-1]
    assert last.startswith("exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,+chown,")
    for capability in [
        "sys_admin",
        "sys_boot",
        "sys_module",
        "sys_time",
        "sys_rawio",
        "mknod",
        "net_admin",
        "sys_ptrace",
        "syslog",
    ]:
        assert capability not in namespace_script.CAPABILITIES.split(",")
    assert _lines().index("echo ready") > _lines().index("pivot_root . .")


def test_machine_mounts_exclude_kernel_and_node_file_systems():
    table = "\n".join(
        [
            "27 1 254:0 / / rw - ext4 /dev/vda rw",
            "22 27 0:21 / /proc rw - proc proc rw",
            "30 25 0:27 / /dev/shm rw - tmpfs tmpfs rw",
            "31 27 0:9 / /mnt/my\\040disk rw shared:1 - xfs /dev/vdb rw",
            "32 27 0:9 / /mnt rw - nfs4 host:/x rw",
            "33 27 0:9 / /run/user/0 rw - tmpfs tmpfs rw",
            "34 27 0:9 / /snap/x rw - cgroup2 none rw",
        ]
    )
    assert namespace_script.machine_mounts(table) == ("/mnt", "/mnt/my disk")


def test_paths_containing_symlinks_are_never_mount_targets(tmp_path):
    (tmp_path / "merged" / "real").mkdir(parents=True)
    (tmp_path / "merged" / "link").symlink_to("/")
    loop = "for path in /real /real/new /link /link/x /real/../x; do straight $path && echo $path; done; :"
    script = f"{namespace_script._STRAIGHT}\n{loop}"
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["/real", "/real/new", "/real/../x"]
