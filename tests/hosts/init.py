"""Init process of a host: mounts the host's private directories, starts sshd and reaps orphans.

Run by `hosts.lab` inside fresh mount, PID, UTS, IPC and network namespaces, as `python3 -I init.py SPEC.json`. Prints
`ready` when the mounts are complete, waits for the line `go` while its parent sets up the network, and prints `up` when
sshd listens.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def bind(source: str, target: str) -> None:
    Path(target).mkdir(parents=True, exist_ok=True)
    mount("--bind", source, target)


def mount_private_directories(spec: dict[str, object]) -> None:
    """Mount private /run, /tmp, /var/tmp, /home, /dev/shm and passwd; the rest is shared with the machine."""
    folder = str(spec["folder"])
    shares = [str(share) for share in spec["shares"]]  # type: ignore[attr-defined]
    mount("--make-rprivate", "/")
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
    Path("/run/sshd").mkdir(mode=0o755)
    bind(folder, "/run/host")
    for number, share in enumerate(shares):
        bind(share, f"/run/shares/{number}")
    for name in ("passwd", "shadow", "group", "hosts", "hostname"):
        mount("--bind", f"/run/host/etc/{name}", f"/etc/{name}")
    bind(str(spec["shared"]), "/run/shared")
    for inside, target in (("home", "/home"), ("vartmp", "/var/tmp"), ("tmp", "/tmp")):
        mount("--bind", f"/run/{'host' if inside == 'tmp' else 'shared'}/{inside}", target)
    for number, share in enumerate(shares):
        bind(f"/run/shares/{number}", share)


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    mount_private_directories(spec)
    socket.sethostname(spec["name"])
    print("ready", flush=True)
    if sys.stdin.readline().strip() != "go":
        return
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with Path("/run/host/sshd.log").open("ab") as log:
        # Without -D, sshd returns when it listens, and its daemon becomes a child of this process.
        subprocess.run(
            [spec["sshd"], "-f", "/run/host/etc/sshd_config", "-E", "/run/host/sshd.log"],
            check=True, stdout=log, stderr=log, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ()),
        )  # fmt: skip
    print("up", flush=True)
    while signal.sigwait({signal.SIGCHLD, signal.SIGTERM}) == signal.SIGCHLD:
        reap()


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


main()
