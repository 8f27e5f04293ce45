"""Validate the `docker run` options that a recipe adds, and reject options that cloudgpu sets itself."""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

_RESERVED: Final = {
    "--name": "cloudgpu names the container",
    "--detach": "cloudgpu waits for the ranks",
    "--rm": "cloudgpu removes the container",
    "--restart": "a container that restarts would outlive its run",
    "--entrypoint": "ranks run through the image's own entry point",
    "--interactive": "ranks have no terminal",
    "--tty": "ranks have no terminal",
    "--cidfile": "cloudgpu finds the container by name",
    "--sig-proxy": "cloudgpu sends signals to the ranks",
    "--init": "the container already has an init process",
    "--pull": "use environment.container.pull",
    "--env": "use environment.env, or environment.secrets for secret values",
    "--env-file": "use environment.env, or environment.secrets for secret values",
    "--network": "ranks need the host network to reach each other",
    "--net": "ranks need the host network to reach each other",
    "--user": "use environment.container.user",
    "--shm-size": "use environment.container.shm",
    "--ipc": "use environment.container.shm",
    "--workdir": "ranks start in the run's work directory",
    "--help": "docker would print its help instead of starting a container",
}
_SHORT: Final = {
    "-d": "--detach",
    "-i": "--interactive",
    "-t": "--tty",
    "-e": "--env",
    "-u": "--user",
    "-w": "--workdir",
    "-h": "--hostname",
}
_FORM: Final = re.compile(r"--[a-z][a-z0-9-]*(=.*)?|-[a-zA-Z]+(=.*)?", re.DOTALL)
_MOUNT: Final = re.compile(
    r"^(?:-v=?|--volume=)[^:]*:(?P<short>[^:]+)|^--mount=.*\b(?:target|dst|destination)=(?P<long>[^,]+)"
)
_RESERVED_DIRECTORIES: Final = frozenset(
    {"/", "/bin", "/boot", "/etc", "/home", "/lib", "/lib32", "/lib64", "/opt", "/root", "/run", "/sbin", "/tmp"}  # noqa: S108
    | {"/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/sbin"}
    | {"/usr/local/cuda", "/usr/share", "/var", "/var/lib", "/var/run"}
)
_RESERVED_TREES: Final = ("/dev", "/proc", "/sys", "/.cloudgpu")


def flag_problems(flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a (flag, problem) pair for every flag that a recipe may not add."""
    for flag in flags:
        if not _FORM.fullmatch(flag):
            yield flag, "expected one `docker run` option as a single word, for example --cap-add=SYS_PTRACE"
            continue
        name = flag.partition("=")[0]
        if not name.startswith("--"):
            name = _SHORT.get(name[:2], name)
        if name in _RESERVED:
            yield flag, _RESERVED[name]
        mount = _MOUNT.match(flag)
        target = (mount["short"] or mount["long"]) if mount else ""
        if target and hides_the_system(target):
            yield flag, f"a mount at {target} would hide files that the container needs"


def hides_the_system(path: PurePosixPath | str) -> bool:
    """Return True if a mount at this path would hide files that the container needs to run."""
    place = PurePosixPath(path)
    return str(place) in _RESERVED_DIRECTORIES or any(place.is_relative_to(directory) for directory in _RESERVED_TREES)
