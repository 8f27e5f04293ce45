"""Paths on the machine that a node may see: interpreters, package caches and settings, but no private files."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import cloudgpu

_PASSED_PREFIXES = ("PIP_", "UV_", "SSL_CERT_")
_PASSED_NAMES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "LANG", "LC_ALL", "TZ")
_PASSED_SUFFIXES = ("_PROXY", "_proxy")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class VisiblePaths:
    """The visible paths. In `hidden` directories, a node sees only `readable`, `writable` and `shared` paths.

    Nodes without namespaces can see every path.
    """

    base_python: str
    commands: tuple[tuple[str, str], ...]
    """Pairs of a command name on a node's PATH and the path of the program that the command runs."""
    environment: tuple[tuple[str, str], ...]
    readable: tuple[Path, ...]
    writable: tuple[Path, ...]
    hidden: tuple[Path, ...]
    path: str = _PATH
    shared: tuple[Path, Path] | None = None
    """The directory that backs shared storage, and its read-only view."""


def find_visible_paths(
    home: Path, envs: Path, environment: Mapping[str, str], shared: tuple[Path, Path] | None = None
) -> VisiblePaths:
    """Return the paths of this machine and user that nodes may see, and create missing writable directories."""
    # Use real paths only: inside a node, nothing can be mounted on a path that contains a symlink.
    user_home, home, envs = _real(Path.home()), _real(home), _real(envs)
    caches = {name: str(_real(Path(path))) for name, path in _caches(user_home, envs, environment).items()}
    # A cache inside `envs` is not mounted separately, because hard links do not work across mounts.
    writable = [envs, *(Path(path) for path in caches.values() if not Path(path).is_relative_to(envs))]
    for folder in writable:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    commands = _commands(base, environment)
    passed = {name: value for name, value in environment.items() if _is_passed(name)}
    passed |= _settings(user_home, environment) | caches
    passed |= {"CLOUDGPU_ENVS": str(envs)}
    if environment.get("UV_CACHE_DIR"):
        passed.setdefault("UV_LINK_MODE", "copy")  # uv cannot hard-link if the cache is a separate mount
    return VisiblePaths(
        base_python=base,
        commands=tuple(commands.items()),
        environment=tuple(sorted(passed.items())),
        readable=tuple(sorted(_readable(commands, passed, writable))),
        writable=tuple(writable),
        shared=None if shared is None else (_real(shared[0]), _real(shared[1].parent) / shared[1].name),
        hidden=tuple(sorted({home, user_home, Path("/home"), Path("/root")} - {Path("/")})),
    )


def _is_passed(name: str) -> bool:
    return name.startswith(_PASSED_PREFIXES) or name.endswith(_PASSED_SUFFIXES) or name in _PASSED_NAMES


def _caches(user_home: Path, envs: Path, environment: Mapping[str, str]) -> dict[str, str]:
    cache = Path(environment.get("XDG_CACHE_HOME") or user_home / ".cache")
    mac = user_home / "Library" / "Caches"
    pip = mac / "pip" if sys.platform == "darwin" else cache / "pip"
    variables = {
        "PIP_CACHE_DIR": environment.get("PIP_CACHE_DIR") or str(pip),
        # If the cache is on the same mount as the environments, uv hard-links files instead of copying them.
        "UV_CACHE_DIR": environment.get("UV_CACHE_DIR") or str(envs / ".uv"),
    }
    pythons = environment.get("UV_PYTHON_INSTALL_DIR") or str(user_home / ".local" / "share" / "uv" / "python")
    if Path(pythons).is_dir():
        variables["UV_PYTHON_INSTALL_DIR"] = pythons
    return variables


def _settings(user_home: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that point pip and uv to the user's settings, because a node has a different home directory."""
    config = Path(environment.get("XDG_CONFIG_HOME") or user_home / ".config")
    candidates = {
        "PIP_CONFIG_FILE": (config / "pip" / "pip.conf", user_home / ".pip" / "pip.conf"),
        "UV_CONFIG_FILE": (config / "uv" / "uv.toml",),
    }
    variables = {}
    for name, paths in candidates.items():
        present = [str(path) for path in paths if path.is_file()]
        if present and name not in environment:
            variables[name] = present[0]
    return variables


def _commands(base: str, environment: Mapping[str, str]) -> dict[str, str]:
    named = environment.get("CLOUDGPU_REHEARSAL_PYTHON", "")
    python = shutil.which(named) if named else None
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    commands = {version: base, "python3": str(_real(Path(python).parent) / Path(python).name) if python else base}
    sibling = Path(sys.executable).parent / "uv"
    uv = str(sibling) if sibling.is_file() else shutil.which("uv")
    if uv:
        commands["uv"] = os.path.realpath(uv)
    return commands


def _readable(commands: Mapping[str, str], passed: Mapping[str, str], writable: list[Path]) -> set[Path]:
    """Return the files and directories that nodes must be able to read even inside a hidden directory."""
    paths = {_real(Path(sys.base_prefix)), _real(Path(sys.prefix)), Path(cloudgpu.__file__).resolve().parent}
    for path in commands.values():
        paths |= _prefixes(Path(path))
    for value in passed.values():
        if value.startswith("/") and Path(value).exists():
            paths.add(Path(value))
    paths = {_real(path.parent) / path.name for path in paths}
    # Paths below a writable directory are mounted with it; a separate read-only mount would remove the write access.
    covered = {path for path in paths if any(path.is_relative_to(folder) for folder in writable)}
    return paths - covered - {Path("/")}


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _prefixes(program: Path) -> set[Path]:
    """Return the paths that a program needs: its file, and its Python environment or installation."""
    real = Path(os.path.realpath(program))
    paths = {program, real}
    # Include only directories that certainly belong to Python: the parent of a tool's `bin` may be all of `~/.local`.
    if (program.parent.parent / "pyvenv.cfg").is_file():
        paths.add(program.parent.parent)
    if real.name.startswith("python") and any((real.parent.parent / "lib").glob("python3*/os.py")):
        paths.add(real.parent.parent)
    return paths - {Path("/usr"), Path("/usr/local")}
