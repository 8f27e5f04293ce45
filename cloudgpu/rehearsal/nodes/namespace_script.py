"""Build the init script of a node with namespaces, which sets up all mounts. This module has no side effects."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.rehearsal.nodes.visible_paths import VisiblePaths

CAPABILITIES = (
    "chown,dac_override,dac_read_search,fowner,fsetid,kill,setgid,setuid,setpcap,"
    "net_bind_service,net_raw,sys_chroot,sys_nice,sys_resource,ipc_lock,setfcap,audit_write"
)
"""The capabilities that a node's superuser keeps. None of them permits mounting, setting the clock, loading modules,
powering off or configuring network devices, and no process of a node can regain a dropped capability."""

DROP_PRIVILEGES = (
    "setpriv",
    "--no-new-privs",
    "--inh-caps=-all",
    f"--bounding-set=-all,+{CAPABILITIES.replace(',', ',+')}",
)

_PSEUDO = frozenset(
    [
        "proc",
        "sysfs",
        "devtmpfs",
        "devpts",
        "cgroup",
        "cgroup2",
        "securityfs",
        "debugfs",
        "tracefs",
        "configfs",
        "fusectl",
        "pstore",
        "bpf",
        "mqueue",
        "hugetlbfs",
        "autofs",
        "binfmt_misc",
        "efivarfs",
        "rpc_pipefs",
        "nsfs",
        "ramfs",
        "selinuxfs",
        "fuse.lxcfs",
        "fuse.gvfsd-fuse",
    ]
)
_OWN = ("/proc", "/sys", "/dev", "/run", "/tmp", "/boot", "/var/tmp", "/var/run")  # noqa: S108 - compared, not used
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
_READ_ONLY_PROC = ("sys", "irq", "bus", "fs", "sysrq-trigger", "acpi", "scsi")
_EMPTY_PROC = ("kcore", "kmsg", "keys", "timer_list", "sched_debug", "latency_stats", "kallsyms")


@dataclass(frozen=True)
class NamespacePaths:
    """The paths that make up a node's root. `disk` contains `upper`, `work`, `merged` and `own`."""

    disk: Path
    run: Path
    console: Path
    hostname: str
    surroundings: VisiblePaths
    machine_mounts: tuple[str, ...] = ()
    home_kib: int = 0
    """Size of the login user's home directory in KiB; 0 means no limit."""


def init_script(cage: NamespacePaths) -> str:
    """Return the script of a node's init, which sets up the root, prints `ready` and then only reaps orphans.

    The first line of its output contains the init's pid as seen from outside the node, and the last line is `ready`.
    """
    lines = [
        "set -e",
        "read -r pid rest < /proc/self/stat",
        'echo "pid $pid"',
        "umask 022",
        f"hostname {shlex.quote(cage.hostname)}",
        # Use relative names, because a path may contain the characters that separate mount options.
        f"cd {shlex.quote(str(cage.disk))}",
        _OVERLAY,
        _STRAIGHT,
        *_own_mounts(),
        *_machine_lines(cage),
        *_hiding_lines(cage),
        *_tiny_home_lines(cage),
        *_shared_lines(cage),
        f"mkdir merged/run/cloudgpu && mount --bind {shlex.quote(str(cage.run))} merged/run/cloudgpu",
        f"shared {shlex.quote(str(cage.console))} /var/log/cloud-init-output.log rw",
        "cd merged",
        # Open the real `umount` now: inside the node, `umount` is a simulated command.
        'exec 9<"$(command -v umount)"',
        "pivot_root . .",
        "/proc/self/fd/9 -l .",
        "exec 9<&-",
        "cd /",
        "echo ready",
        "exec </dev/null >/dev/null 2>&1",
        f"exec {shlex.join(DROP_PRIVILEGES)} /bin/sh -c {shlex.quote(_REAP)}",
    ]
    return "\n".join(lines) + "\n"


_OVERLAY = "mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work,index=off,redirect_dir=off merged"

# From the second boot on, the disk may contain symlinks that the node created. Following a symlink out of `merged`
# would create files on the machine, so nothing is created or mounted on a path that contains a symlink.
_STRAIGHT = """\
folder() {
    [ -d "$1" ] || mkdir -p "$1"
}
straight() {
    walked=merged rest=${1#/}
    while [ -n "$rest" ]; do
        walked=$walked/${rest%%/*}
        if [ -L "$walked" ]; then return 1; fi
        case $rest in */*) rest=${rest#*/} ;; *) rest= ;; esac
    done
}
shared() {
    straight "$2" || return 0
    if [ -d "$1" ]; then folder "merged$2"; else folder "merged${2%/*}"; [ -e "merged$2" ] || : > "merged$2"; fi
    mount -o "bind,$3" "$1" "merged$2"
}
hidden() {
    straight "$1" || return 0
    folder "merged$1"
    mount -t tmpfs -o mode=755,nosuid,nodev tmpfs "merged$1"
}"""

# Terminate the node when its files are deleted, so that deleting a state home leaves no process behind.
_REAP = "while [ -e /run/cloudgpu/alive ]; do sleep 60 & wait $!; done"


def machine_mounts(mountinfo: str) -> tuple[str, ...]:
    """Return the machine's mount points, outermost first.

    `/`, kernel file systems, and mount points in directories that nodes replace, such as `/tmp`, are excluded.
    """
    points: dict[str, None] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, file_system = before.split(), after.split(" ", 1)[0]
        point = _unescaped(fields[4])
        if point == "/" or file_system in _PSEUDO or any(is_inside(point, own) for own in _OWN):
            continue
        points[point] = None
    return tuple(sorted(points, key=lambda point: (point.count("/"), point)))


def _own_mounts() -> list[str]:
    lines = [
        "mount -t proc -o nosuid,nodev,noexec proc merged/proc",
        *(
            f"if [ -e merged/proc/{name} ]; then "
            f"mount -o bind,ro,nosuid,nodev,noexec merged/proc/{name} merged/proc/{name}; fi"
            for name in _READ_ONLY_PROC
        ),
        *(f"if [ -e merged/proc/{name} ]; then mount --bind /dev/null merged/proc/{name}; fi" for name in _EMPTY_PROC),
        "mount -t sysfs -o ro,nosuid,nodev,noexec sysfs merged/sys",
        "mount -t tmpfs -o mode=755,size=4m,nosuid tmpfs merged/dev",
        "mkdir merged/dev/pts merged/dev/shm merged/dev/mqueue",
        "mount -t devpts -o newinstance,ptmxmode=0666,mode=620,nosuid,noexec devpts merged/dev/pts",
        "mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs merged/dev/shm",
        "ln -s pts/ptmx merged/dev/ptmx",
        "ln -s /proc/self/fd merged/dev/fd",
        "ln -s /proc/self/fd/0 merged/dev/stdin",
        "ln -s /proc/self/fd/1 merged/dev/stdout",
        "ln -s /proc/self/fd/2 merged/dev/stderr",
    ]
    lines += [
        f"if [ -e /dev/{name} ]; then : > merged/dev/{name}; mount --bind /dev/{name} merged/dev/{name}; fi"
        for name in _DEVICES
    ]
    return [
        *lines,
        # The machine's services listen in /run, and a node must not reach their sockets.
        "mount -t tmpfs -o mode=755,nosuid,nodev tmpfs merged/run",
        "mkdir -p merged/run/lock merged/run/user",
        "rm -rf own/tmp own/vartmp",
        "mkdir -p -m 1777 own/tmp own/vartmp",
        "mount --bind own/tmp merged/tmp",
        "if [ -d merged/var/tmp ]; then mount --bind own/vartmp merged/var/tmp; fi",
    ]


def _machine_lines(cage: NamespacePaths) -> list[str]:
    """Mount the machine's other disks read-only, so that nodes can use the data and interpreters on them."""
    hidden = [str(path) for path in cage.surroundings.hidden]
    points = [point for point in cage.machine_mounts if not any(is_inside(point, path) for path in hidden)]
    return [
        f"if [ -e {quoted} ]; then (shared {quoted} {quoted} ro) 2>/dev/null || :; fi"
        for quoted in map(shlex.quote, points)
    ]


def _hiding_lines(cage: NamespacePaths) -> list[str]:
    """Cover private directories with empty ones, then mount the login user's home directory."""
    paths = sorted((str(path) for path in cage.surroundings.hidden), key=len)
    return [
        *(f"if [ -d {quoted} ]; then hidden {quoted}; fi" for quoted in map(shlex.quote, paths)),
        "if [ ! -d /home ]; then hidden /home; fi",
        'for home in own/home/*; do shared "$home" "/home/${home##*/}" rw; done',
    ]


def _tiny_home_lines(cage: NamespacePaths) -> list[str]:
    """Simulate a full disk: cover each home directory with a small file system that contains only `.ssh`."""
    if not cage.home_kib:
        return []
    options = f"mode=755,nosuid,nodev,size={cage.home_kib}k"
    return [
        "for home in own/home/*; do",
        "    there=merged/home/${home##*/}",
        f'    mount -t tmpfs -o {options} tmpfs "$there" && cp -a "$home/.ssh" "$there/"',
        "done",
    ]


def _shared_lines(cage: NamespacePaths) -> list[str]:
    """Mount the paths that a node needs below hidden or replaced directories, outermost first."""
    needed = [(str(path), str(path), "rw") for path in cage.surroundings.writable]
    if cage.surroundings.shared:
        folder, read_only = map(str, cage.surroundings.shared)
        needed += [(folder, folder, "rw"), (folder, read_only, "ro")]
    covered = (*map(str, cage.surroundings.hidden), *_OWN)
    for path in map(str, cage.surroundings.readable):
        if any(is_inside(path, folder) for folder in covered):
            needed.append((path, path, "ro"))
    return [
        f"if [ -e {shlex.quote(path)} ]; then shared {shlex.quote(path)} {shlex.quote(target)} {access}; fi"
        for path, target, access in sorted(needed, key=lambda mount: len(mount[1]))
    ]


def is_inside(path: str, folder: str) -> bool:
    """Return True if `path` is `folder` or is inside `folder`."""
    return path == folder or path.startswith(f"{folder}/")


def _unescaped(text: str) -> str:
    """Decode the octal escapes of space, tab, newline and backslash in mount tables."""
    return text.encode().decode("unicode_escape").encode("latin-1").decode() if "\\" in text else text
