"""The files and packages that a node has at its first boot, including those of an image created from a node."""

import importlib.resources
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu.decoding import decode_as
from cloudgpu.files import RECORD_BYTES
from cloudgpu.rehearsal.layout import DocumentFormat
from cloudgpu.rehearsal.nodes import record
from cloudgpu.rehearsal.nodes.visible_paths import VisiblePaths

_FORMAT: Final = DocumentFormat("image package list")
"""In the file, the format number is a key beside the image IDs, which all begin with `ami-`."""
_PROGRAM_FOLDER = "opt/cloudgpu"
_STANDARD_FOLDERS = ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin")
STUB_COMMANDS = (
    *("shutdown", "poweroff", "halt", "reboot", "telinit", "init"),
    *("systemctl", "systemd-run", "loginctl", "hostnamectl", "timedatectl", "localectl", "journalctl"),
    *("apt-get", "apt", "apt-cache", "apt-mark", "aptitude", "add-apt-repository", "apt-key"),
    *("dpkg", "snap", "yum", "dnf", "rpm"),
    *("modprobe", "insmod", "rmmod", "depmod", "dkms", "kexec", "sysctl", "hwclock", "ldconfig", "update-grub"),
    *("update-initramfs", "nvidia-smi", "nvidia-persistenced", "nvidia-modprobe", "fi_info", "cloud-init"),
    "nv-fabricmanager",
    *("mount", "umount", "mountpoint", "mount-s3", "s3fs", "blkid", "mkfs.ext4", "mdadm", "modinfo"),
    *("iptables", "ip6tables", "nft", "ufw", "swapon", "swapoff", "mkswap"),
)
"""Commands that the node host simulates. On a node's PATH, they replace the machine's programs with the same names."""
_STAND_IN = """\
#!/bin/sh
exec {python} -I -S {program} "${{0##*/}}" "$@"
"""
NO_EGRESS_FILE = "no-egress"
"""Name of a file in a node's run directory. While the file exists, the node cannot access the internet."""
NETWORK_COMMANDS = ("curl", "wget", "docker")
"""Download programs. On a node without internet access, wrappers make downloads from other hosts fail."""
_FETCHING = """\
#!/bin/sh
# Without access to the internet, connections that leave this node fail as on AWS.
if [ -e "${{CLOUDGPU_NODE_RUN:-/run/cloudgpu}}/{mark}" ]; then
    case "${{0##*/}} $*" in
        *://127.*|*://localhost*|*://\\[::1\\]*) ;;
        curl*://*) echo "curl: (28) Failed to connect: Connection timed out (simulated: no route to the internet)" >&2
            exit 28 ;;
        wget*://*) echo "wget: failed: Connection timed out (simulated: no route to the internet)" >&2
            exit 4 ;;
        "docker pull"*|"docker run"*|"docker login"*|"docker search"*)
            echo "Error response from daemon: net/http: request canceled while waiting for connection" \\
                "(Client.Timeout exceeded while awaiting headers) (simulated: no route to the internet)" >&2
            exit 1 ;;
    esac
fi
exec {real} "$@"
"""
_SUDO = """\
#!/bin/sh
# Commands on a simulated node need no further privileges: skip the options and run the command.
shell=
while [ $# -gt 0 ]; do
    case $1 in
        --) shift; break ;;
        --login|--shell) shell=yes; shift ;;
        --user|--group|--host|--prompt|--chdir|--chroot|--close-from|--other-user) shift; [ $# -eq 0 ] || shift ;;
        --*) shift ;;
        -*[ughpCDRTU]) shift; [ $# -eq 0 ] || shift ;;
        -*[is]*) shell=yes; shift ;;
        -*[vVlkK]) exit 0 ;;
        -*) shift ;;
        [A-Za-z_]*=*) export "$1"; shift ;;
        *) break ;;
    esac
done
if [ $# -gt 0 ]; then exec "$@"; fi
if [ -n "$shell" ]; then exec "${SHELL:-/bin/sh}"; fi
echo "usage: sudo [options] command" >&2
exit 1
"""


class Images:
    """The packages installed in a rehearsal cloud's images, stored in one file."""

    def __init__(self, path: Path) -> None:
        """Create the store without reading the file.

        Args:
            path: Path of the file, which need not exist.
        """
        self._path = path

    def installed(self, image_id: str) -> tuple[str, ...]:
        """Return the packages installed in an image, or an empty tuple if the image was not created from a node."""
        return tuple(self._read().get(image_id, ()))

    def store(self, image_id: str, installed: tuple[str, ...]) -> None:
        """Store the list of packages installed in an image."""
        record.write_private(self._path, _FORMAT.encode(self._read() | {image_id: list(installed)}))

    def _read(self) -> dict[str, list[str]]:
        try:
            return decode_as(dict[str, list[str]], _FORMAT.read(self._path, RECORD_BYTES))
        except (OSError, ValueError):
            return {}


@dataclass(frozen=True)
class Layer:
    """The base image's files in the directory `folder`, which nodes see at `shown`, or at `/` if `shown` is empty."""

    folder: Path
    shown: str
    surroundings: VisiblePaths

    def write_files(self, *, user: str, hostname: str, authorized_keys: tuple[str, ...], host_key_public: str) -> None:
        """Write all files. Call this only before the first boot, because a node may create symlinks in `folder`."""
        self._lay_programs()
        self._lay_links()
        self._write("usr/local/bin/sudo", _SUDO, mode=0o755)
        self._lay_interpreters()
        self._lay_fetching()
        self._lay_home(user, authorized_keys)
        self._lay_names(user, hostname)
        self._write("etc/ssh/ssh_host_ed25519_key.pub", host_key_public + "\n")
        for folder in ("tmp", "var/tmp", "var/log", "run"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)

    def program(self, name: str) -> str:
        """Return the path at which the node sees one of the rehearsal cloud's own programs."""
        return f"{self.shown}/{_PROGRAM_FOLDER}/{name}"

    def _lay_programs(self) -> None:
        sources = importlib.resources.files("cloudgpu.rehearsal.nodes.servers")
        for name in ("standin.py", "sftp.py"):
            self._write(f"{_PROGRAM_FOLDER}/{name}", (sources / name).read_text())
        python = shlex.quote(self.surroundings.base_python)
        text = _STAND_IN.format(python=python, program=shlex.quote(self.program("standin.py")))
        self._write(f"{_PROGRAM_FOLDER}/standin", text, mode=0o755)

    def _lay_links(self) -> None:
        """Create symlinks for each simulated command in all directories where the node may look for it."""
        target = self.program("standin")
        for name in STUB_COMMANDS:
            for folder in self._folders_of(name):
                self._link(f"{folder}/{name}", target)
        for folder in self._folders_of("sudo") - {"usr/local/bin"}:
            self._link(f"{folder}/sudo", f"{self.shown}/usr/local/bin/sudo")

    def _folders_of(self, name: str) -> set[str]:
        folders = {"usr/local/bin"}
        if self.shown:
            return folders
        folders |= {_real_folder(folder) for folder in ("sbin", "usr/sbin", "usr/bin")}
        return folders | {_real_folder(folder) for folder in _STANDARD_FOLDERS if os.path.lexists(f"/{folder}/{name}")}

    def _lay_interpreters(self) -> None:
        """Write scripts that start the interpreters, because a symlinked interpreter loses its virtual environment."""
        for name, path in self.surroundings.commands:
            self._write(f"usr/local/bin/{name}", f'#!/bin/sh\nexec {shlex.quote(path)} "$@"\n', mode=0o755)

    def _lay_fetching(self) -> None:
        """Write wrappers for the download programs that are installed on this machine."""
        first = "usr/local/bin" if self.shown else "usr/local/sbin"  # the first directory on a node's PATH
        for name in NETWORK_COMMANDS:
            real = shutil.which(name, path=self.surroundings.path)
            # If the real program is in the same directory, the wrapper would replace it.
            if real and (self.shown or Path(real).parent != Path("/", first)):
                text = _FETCHING.format(mark=NO_EGRESS_FILE, real=shlex.quote(real))
                self._write(f"{first}/{name}", text, mode=0o755)

    def _lay_home(self, user: str, authorized_keys: tuple[str, ...]) -> None:
        self._write(f"home/{user}/.ssh/authorized_keys", "".join(f"{key}\n" for key in authorized_keys), mode=0o600)
        (self.folder / "home" / user / ".ssh").chmod(0o700)

    def _lay_names(self, user: str, hostname: str) -> None:
        self._write("etc/hostname", f"{hostname}\n")
        if self.shown:
            return
        # The login user has uid 0, as after `sudo`, so that shared files stay writable.
        self._write("etc/passwd", f"{user}:x:0:0:{user}:/home/{user}:/bin/bash\n{_machine_text('/etc/passwd', user)}")
        self._write("etc/shadow", f"{user}:*:19000:0:99999:7:::\nroot:*:19000:0:99999:7:::\n", mode=0o600)
        self._write("etc/gshadow", "", mode=0o600)
        self._write("etc/hosts", f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {hostname}\n")
        # On many systems, this file is a symlink into /run, which is empty in a node.
        resolver = Path("/etc/resolv.conf")
        if resolver.is_symlink() and resolver.is_file():
            self._write("etc/resolv.conf", resolver.read_text(errors="replace"))
        for key in Path("/etc/ssh").glob("ssh_host_*"):
            self._write(f"etc/ssh/{key.name}", "", mode=0o600)

    def _link(self, name: str, target: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def _write(self, name: str, text: str, *, mode: int = 0o644) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)


def _real_folder(folder: str) -> str:
    """Resolve a directory such as `sbin`, which is often a symlink: a new directory of that name would hide files."""
    return os.path.realpath(f"/{folder}").lstrip("/")


def _machine_text(path: str, user: str) -> str:
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return "root:x:0:0:root:/root:/bin/bash\n"
    return "".join(f"{line}\n" for line in lines if not line.startswith(f"{user}:"))
