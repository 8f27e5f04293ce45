"""A machine with its own root file system and namespaces, in which the Debian package cloud-init runs.

`Machine.run` starts the machine, runs one command in it and powers it off; its disk stays for the next start.
"""

import base64
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
UNPACKED = HERE.parents[2] / ".cache" / "cloud-init"
"""Folder into which `scripts/test-parts` unpacks the Debian package and its Python dependencies."""
_ETC = (
    "adduser.conf", "alternatives", "bash.bashrc", "debian_version", "default", "deluser.conf", "group", "gshadow",
    "host.conf", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "login.defs", "nsswitch.conf", "os-release",
    "pam.conf", "pam.d", "passwd", "profile", "python3", "python3.11", "securetty", "security", "services", "shadow",
    "shells", "skel", "ssl",
)  # fmt: skip
_LINKS = ("bin", "lib", "lib64", "sbin")
_FOLDERS = (
    "dev", "etc/ssh", "etc/sudoers.d", "home", "proc", "root", "run", "samples", "sys", "tmp", "usr", "var/cache",
    "var/lib", "var/log", "var/spool", "var/tmp",
)  # fmt: skip
_UNWANTED = (
    "growpart",
    "resizefs",
    "disk_setup",
    "mounts",
    "grub-dpkg",
    "apt-configure",
    "apt-pipelining",
    "locale",
    "ntp",
)
"""Modules that need disks, a package archive, generated locales or a time server; none of them handles user data."""
_BOOT = "; ".join(
    [
        "cloud-init init --local",
        "cloud-init init",
        "cloud-init modules --mode=config",
        "cloud-init modules --mode=final",
    ]
)
TOOLS = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc")


@dataclass(frozen=True)
class Machine:
    """A machine that is powered off."""

    root: Path
    spec: Path

    def run(self, command: str, *, metadata: bool = False, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Start the machine, run a shell command in it and power it off."""
        services = [sys.executable, HERE / "services.py", self.spec, self.root / "dev"]
        serve = f"exec {shlex.join(map(str, services))}" if metadata else ""
        argv = ["unshare", *_NAMESPACES, "sh", str(HERE / "enter.sh"), str(self.root), str(UNPACKED), serve, command]
        environment = {**os.environ, "PATH": TOOLS}
        done = subprocess.run(argv, env=environment, cwd="/", capture_output=True, text=True, timeout=240, check=False)
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def boot(self) -> None:
        """Boot once as an EC2 instance does: the four stages of cloud-init, with the rehearsal's metadata service."""
        done = self.run(_BOOT, metadata=True, check=False)  # a failing script makes the last stage fail
        assert "finished at" in done.stdout, f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

    def text(self, path: str) -> str:
        """Return the content of a file of the machine, or nothing if it does not exist."""
        found = self.root / path.lstrip("/")
        return found.read_text(errors="replace") if found.exists() else ""


def build(folder: Path, user_data: bytes = b"", keys: Sequence[str] = ()) -> Machine:
    """Create a machine that has never been booted."""
    root = folder / "root"
    for name in _FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for name in _LINKS:
        (root / name).symlink_to(f"usr/{name}")
    for name in _ETC:
        source = Path("/etc") / name
        if source.is_dir():
            shutil.copytree(source, root / "etc" / name, symlinks=True, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy2(source, root / "etc" / name)
    shutil.copytree(UNPACKED / "etc", root / "etc", symlinks=True, dirs_exist_ok=True)
    (root / "etc" / "cloud" / "cloud.cfg.d" / "99_test.cfg").write_text(_configuration(root))
    spec = {
        "instance_id": "i-0abcdef1234567890", "instance_type": "p3dn.24xlarge", "region": "us-east-1",
        "zone": "us-east-1c", "image_id": "ami-0abcdef1234567890", "address": "10.0.0.11", "user": "debian",
        "gpu": "V100", "gpus": 8,
        "gpu_memory_mib": 32768, "efa_interfaces": 1, "authorized_keys": list(keys),
        "user_data": base64.b64encode(user_data).decode(),
    }  # fmt: skip
    (folder / "spec.json").write_text(json.dumps(spec))
    return Machine(root, folder / "spec.json")


def _configuration(root: Path) -> str:
    """Return additional settings: only the EC2 data source, and no modules that need disks or a package archive."""
    lines = [
        "datasource_list: [Ec2]",
        "datasource: {Ec2: {max_wait: 60, timeout: 30}}",
    ]
    lines.append("network: {config: disabled}")
    wanted: dict[str, list[str]] = {}
    stage = ""
    for line in (root / "etc/cloud/cloud.cfg").read_text().splitlines():
        if line.endswith("_modules:"):
            stage = line.rstrip(":")
            wanted[stage] = []
        elif stage and line.startswith(" - "):
            wanted[stage].append(line.removeprefix(" - "))
        elif line.strip() and not line.startswith("#"):
            stage = ""
    assert {"users-groups", "ssh"} <= set(wanted["cloud_init_modules"])
    for stage, modules in wanted.items():
        lines.append(f"{stage}: [{', '.join(name for name in modules if name not in _UNWANTED)}]")
    return "\n".join([*lines, ""])
