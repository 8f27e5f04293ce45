"""Options of `docker run` that a recipe adds: which it may, and what each would do that a run does itself. Pure."""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

_OURS: Final = {
    "--name": "a run names its container itself",
    "--detach": "a run waits for its ranks itself",
    "--rm": "a run removes its container itself",
    "--restart": "a container that comes back outlives its run",
    "--entrypoint": "ranks are executed behind the image's own entry point",
    "--interactive": "a rank has no terminal",
    "--tty": "a rank has no terminal",
    "--cidfile": "a run finds its container by its name",
    "--sig-proxy": "a run signals its ranks itself",
    "--init": "it has one already",
    "--pull": "use environment.container.pull",
    "--env": "use environment.env, or environment.secrets for what nobody may see",
    "--env-file": "use environment.env, or environment.secrets for what nobody may see",
    "--network": "ranks need the node's own network to find each other",
    "--net": "ranks need the node's own network to find each other",
    "--user": "use environment.container.user",
    "--shm-size": "use environment.container.shm",
    "--ipc": "use environment.container.shm",
    "--workdir": "ranks begin in the run's work directory",
    "--help": "it starts nothing",
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
_MOUNTED: Final = re.compile(
    r"^(?:-v=?|--volume=)[^:]*:(?P<short>[^:]+)|^--mount=.*\b(?:target|dst|destination)=(?P<long>[^,]+)"
)
_SYSTEM: Final = frozenset(
    {"/", "/bin", "/boot", "/etc", "/home", "/lib", "/lib32", "/lib64", "/opt", "/root", "/run", "/sbin", "/tmp"}  # noqa: S108
    | {"/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/sbin"}
    | {"/usr/local/cuda", "/usr/share", "/var", "/var/lib", "/var/run"}
)
_KERNELS: Final = ("/dev", "/proc", "/sys", "/.cloudgpu")


def flag_problems(flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(flag, what is wrong with it) for every one that a recipe may not add."""
    for flag in flags:
        if not _FORM.fullmatch(flag):
            yield flag, "expected one option of `docker run` in one word, for instance --cap-add=SYS_PTRACE"
            continue
        name = flag.partition("=")[0]
        if not name.startswith("--"):
            name = _SHORT.get(name[:2], name)
        if name in _OURS:
            yield flag, _OURS[name]
        found = _MOUNTED.match(flag)
        place = (found["short"] or found["long"]) if found else ""
        if place and hides_the_system(place):
            yield flag, f"a mount at {place} would hide what the container needs to run"


def hides_the_system(path: PurePosixPath | str) -> bool:
    """Whether something mounted there in a container would hide what it needs to run."""
    place = PurePosixPath(path)
    return str(place) in _SYSTEM or any(place.is_relative_to(one) for one in _KERNELS)
