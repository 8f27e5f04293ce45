"""A node without a real system: a root directory, and a PATH on which every command is a stub."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

REAL = (
    *("sh", "mkdir", "date", "tail", "tr", "cut", "mv", "sleep", "cat", "grep", "rm", "mktemp", "touch", "tar", "gzip"),
    *("flock", "base64", "chmod", "sed", "ln", "sync", "timeout"),
)
CHANGING = (
    *("systemctl", "apt-get", "apt-mark", "apt-cache", "dpkg", "curl", "gpg", "update-initramfs", "python3", "modinfo"),
    *("mdadm", "mkfs.ext4", "blkid", "mount", "nvidia-ctk"),
)


LISTED = "\tlibnccl-net.so (libc6,x86-64) => /opt/amazon/ofi-nccl/lib/libnccl-net.so"
"""Line of `ldconfig -p` if the loader finds NCCL's EFA plugin."""
ONLINE = 'case "$*" in *update*) echo "Hit:1 http://archive.ubuntu.com/ubuntu jammy InRelease";; esac'
ARCHIVE = """case $* in
*show*) echo "Depends: nvidia-kernel-common-580-server (>= 580.126.09)";;
*policy*) echo "  Candidate: 580.126.09-0ubuntu0.22.04.1";;
*madison*) echo "nvidia-fabricmanager-580 | 580.126.09-1 | http://archive.ubuntu.com/ubuntu jammy Packages";;
esac"""
"""An archive whose libraries have the version of the prebuilt modules. `test_bootstrap_driver.py` runs the real apt."""


class Machine:
    """A root directory and a PATH on which every command is a stub that records its calls."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin, self.calls = root / "root", root / "bin", root / "calls"
        self.state = self.root / "var/lib/cloudgpu"
        self.root.mkdir()
        self.bin.mkdir()
        for folder in ("proc", "etc/modprobe.d", "usr/share/keyrings", "etc/apt/sources.list.d"):
            (self.root / folder).mkdir(parents=True)
        self.write("proc/mounts", "")
        self.write("proc/modules", "")
        self.write("etc/os-release", "VERSION_CODENAME=jammy\n")
        for name in REAL:
            (self.bin / name).symlink_to(shutil.which(name))
        for name in CHANGING:
            self.stand_in(name)
        self.stand_in("apt-get", ONLINE)
        self.stand_in("apt-cache", ARCHIVE)
        self.stand_in("modinfo", "exit 1")  # a plain image has no driver
        self.stand_in("uname", "echo 6.8.0-1024-aws")
        # There is no nvidia-smi before the module was loaded.
        self.stand_in("nvidia-smi", f"[ -e {root}/driver ] || exit 127")
        self.stand_in("modprobe", f"touch {root}/driver")

    def stand_in(self, name: str, body: str = "exit 0") -> None:
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{self.calls}\n{body}\n')
        (self.bin / name).chmod(0o755)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def disks(self, *names: str) -> None:
        for name in names:
            self.write(f"sys/block/{name}/device/model", "Amazon EC2 NVMe Instance Storage             \n")
            (self.root / f"sys/block/{name}/holders").mkdir()
        self.stand_in("blkid", "exit 2")
        self.stand_in("mount", f'for last in "$@"; do :; done; echo "x $last ext4" >>{self.root}/proc/mounts')

    @property
    def environment(self) -> dict[str, str]:
        limits = {"CLOUDGPU_RETRY_S": "0", "CLOUDGPU_DRIVER_S": "0", "CLOUDGPU_ONLINE_S": "0", "CLOUDGPU_FABRIC_S": "0"}
        return {"PATH": str(self.bin), "CLOUDGPU_NODE_ROOT": str(self.root), **limits}

    def boot(self, text: str) -> tuple[int, dict]:
        done = subprocess.run(
            [str(self.bin / "sh")], input=text.encode(), env=self.environment, check=False, timeout=60
        )
        return done.returncode, self.told()

    def told(self) -> dict:
        return json.loads((self.state / "bootstrap.json").read_text())

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def installs(self) -> list[str]:
        calls = [call for call in self.called() if call.startswith("apt-get") and " install " in call]
        return [call for call in calls if " -s " not in call]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def took(state: dict) -> dict[str, str]:
    return {step["name"]: step["state"] for step in state["steps"]}
