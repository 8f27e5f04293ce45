"""Paths of the machine that a node may see: interpreters, package caches and settings, but nothing private."""

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
    """Visible paths of the machine. `hidden` folders are empty inside a node, except for `readable` and `writable`."""

    base_python: str
    commands: tuple[tuple[str, str], ...]
    """Command name on a node's PATH, and the program that it runs."""
    environment: tuple[tuple[str, str], ...]
    readable: tuple[Path, ...]
    writable: tuple[Path, ...]
    hidden: tuple[Path, ...]
    path: str = _PATH
    shared: tuple[Path, Path] | None = None
    """Folders that back shared storage: where nodes write, and where they see it read-only."""


def survey(
    home: Path, envs: Path, environment: Mapping[str, str], shared: tuple[Path, Path] | None = None
) -> VisiblePaths:
    """Inspect this machine and user. Creates missing shared folders.

    Raises:
        OSError: A folder cannot be created.
    """
    # Real paths only: inside a node nothing can be mounted on a path that contains a symlink.
    user_home, home, envs = _real(Path.home()), _real(home), _real(envs)
    caches = {name: str(_real(Path(path))) for name, path in _caches(user_home, envs, environment).items()}
    # Folders below the environments are mounted with them: as separate mounts, no hard links between them would work.
    writable = [envs, *(Path(path) for path in caches.values() if not Path(path).is_relative_to(envs))]
    for folder in writable:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    commands = _commands(base, environment)
    passed = {name: value for name, value in environment.items() if _passes(name)}
    passed |= _settings(user_home, environment) | caches
    passed |= {"CLOUDGPU_ENVS": str(envs)}
    if environment.get("UV_CACHE_DIR"):
        passed.setdefault("UV_LINK_MODE", "copy")  # cache and environments are separate mounts: no hard links
    return VisiblePaths(
        base_python=base,
        commands=tuple(commands.items()),
        environment=tuple(sorted(passed.items())),
        readable=tuple(sorted(_readable(commands, passed, writable))),
        writable=tuple(writable),
        shared=None if shared is None else (_real(shared[0]), _real(shared[1].parent) / shared[1].name),
        hidden=tuple(sorted({home, user_home, Path("/home"), Path("/root")} - {Path("/")})),
    )


def _passes(name: str) -> bool:
    return name.startswith(_PASSED_PREFIXES) or name.endswith(_PASSED_SUFFIXES) or name in _PASSED_NAMES


def _caches(user_home: Path, envs: Path, environment: Mapping[str, str]) -> dict[str, str]:
    cache = Path(environment.get("XDG_CACHE_HOME") or user_home / ".cache")
    mac = user_home / "Library" / "Caches"
    pip = mac / "pip" if sys.platform == "darwin" else cache / "pip"
    found = {
        "PIP_CACHE_DIR": environment.get("PIP_CACHE_DIR") or str(pip),
        # On the same mount as the environments uv hard-links its files; elsewhere it would store every file twice.
        "UV_CACHE_DIR": environment.get("UV_CACHE_DIR") or str(envs / ".uv"),
    }
    pythons = environment.get("UV_PYTHON_INSTALL_DIR") or str(user_home / ".local" / "share" / "uv" / "python")
    if Path(pythons).is_dir():
        found["UV_PYTHON_INSTALL_DIR"] = pythons
    return found


def _settings(user_home: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the user's pip and uv settings. A node has a different home, so they are passed by variable."""
    config = Path(environment.get("XDG_CONFIG_HOME") or user_home / ".config")
    candidates = {
        "PIP_CONFIG_FILE": (config / "pip" / "pip.conf", user_home / ".pip" / "pip.conf"),
        "UV_CONFIG_FILE": (config / "uv" / "uv.toml",),
    }
    found = {}
    for name, paths in candidates.items():
        present = [str(path) for path in paths if path.is_file()]
        if present and name not in environment:
            found[name] = present[0]
    return found


def _commands(base: str, environment: Mapping[str, str]) -> dict[str, str]:
    named = environment.get("CLOUDGPU_REHEARSAL_PYTHON", "")
    python = shutil.which(named) if named else None
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = {version: base, "python3": str(_real(Path(python).parent) / Path(python).name) if python else base}
    beside = Path(sys.executable).parent / "uv"
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv:
        found["uv"] = os.path.realpath(uv)
    return found


def _readable(commands: Mapping[str, str], passed: Mapping[str, str], writable: list[Path]) -> set[Path]:
    """Return the files and folders that must be visible even below a hidden folder."""
    found = {_real(Path(sys.base_prefix)), _real(Path(sys.prefix)), Path(cloudgpu.__file__).resolve().parent}
    for path in commands.values():
        found |= _prefixes(Path(path))
    for value in passed.values():
        if value.startswith("/") and Path(value).exists():
            found.add(Path(value))
    found = {_real(path.parent) / path.name for path in found}
    # Folders below a writable one are mounted with it: a read-only mount would take the write access away.
    covered = {path for path in found if any(path.is_relative_to(folder) for folder in writable)}
    return found - covered - {Path("/")}


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _prefixes(program: Path) -> set[Path]:
    """Return the paths that a program needs: its file, and its Python environment or installation."""
    real = Path(os.path.realpath(program))
    found = {program, real}
    # Only if it is certainly Python's: the folder above a tool's `bin` may be the user's whole `~/.local`.
    if (program.parent.parent / "pyvenv.cfg").is_file():
        found.add(program.parent.parent)
    if real.name.startswith("python") and any((real.parent.parent / "lib").glob("python3*/os.py")):
        found.add(real.parent.parent)
    return found - {Path("/usr"), Path("/usr/local")}
