"""`env`: an interpreter that has what the recipe requires; found as it is, or built once per requirement set."""

from __future__ import annotations

import hashlib
import json
import os
import pkgutil
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, List

from .. import files, subprocess_tool
from ..errors import AgentError
from . import installer, package_sources

Run = Callable[[str, List[str], Dict[str, str]], None]
"""Runs a tool: what it does in words, its command line, further variables."""

_MARKER = ".cloudgpu-complete.json"
"""Written last: an environment without it is the rest of a killed build."""
_FORMAT = 1
"""Part of the hash: environments of another layout are built anew."""
_CHECK_S = 60.0
_BACKEND = re.compile(r"cu\d{2,3}")
_UV = "uv>=0.7.14"
"""The first in which `--torch-backend` is no preview."""


@dataclass(frozen=True)
class EnvironmentRequest:
    """What is required of an interpreter."""

    requirements: tuple[str, ...]
    version: str | None
    root: str
    torch_backend: str | None = None
    """Build of PyTorch, `cu126`, which only uv knows how to choose."""


def verb(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Print progress lines, then `{"interpreter": path, "built": whether it was built now}`.

    Raises:
        AgentError: The request is wrong, no Python of that version is there, or the build failed.
    """
    request = _read(spec)
    interpreter, built = provide(request, lambda text: emit({"progress": text}))
    emit({"interpreter": interpreter, "built": built})


def provide(request: EnvironmentRequest, progress: Callable[[str], None]) -> tuple[str, bool]:
    """Find or build.

    Raises:
        AgentError: As `verb`.
    """
    base = _base(request.version)
    folder = os.path.join(request.root, _digest(request, base))
    if _complete(folder):
        return _python(folder), False
    # Which build of PyTorch an interpreter has, its metadata does not tell for certain.
    ready = (
        None if request.torch_backend else next((one for one in _candidates(base) if _satisfies(one, request)), None)
    )
    if ready is not None:
        return ready, False
    return _build_once(request, base, folder, progress)


def _read(spec: dict[str, Any]) -> EnvironmentRequest:
    requirements, version, backend = spec.get("requirements") or [], spec.get("version"), spec.get("torch_backend")
    if not isinstance(requirements, list) or not all(
        isinstance(line, str) and "\n" not in line for line in requirements
    ):
        raise AgentError("env: requirements must be lines of text")
    if version is not None and not isinstance(version, str):
        raise AgentError("env: version must be text, for instance 3.11")
    if backend is not None and not (isinstance(backend, str) and _BACKEND.fullmatch(backend)):
        raise AgentError("env: torch_backend must be one of PyTorch's CUDA builds, for instance cu126")
    root = spec.get("root") or os.environ.get("CLOUDGPU_ENVS") or "~/.cloudgpu/envs"
    return EnvironmentRequest(tuple(requirements), version, os.path.abspath(os.path.expanduser(root)), backend)


def _base(version: str | None) -> str:
    """The Python to build on: a path, or with uv a version that it finds or fetches itself.

    Raises:
        AgentError: There is none.
    """
    names = ["python3"] if version is None else [f"python{version}"]
    if version is not None and version == _version_of_python3():
        names.append("python3")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is not None:
        return found
    if version is not None and installer.find_uv():
        return version
    raise AgentError(f"no Python {version or 3} on this node", hint="install it, or uv, which fetches it")


def _version_of_python3() -> str:
    """The version of `python3` on PATH, usually the one that runs this."""
    path = shutil.which("python3")
    if path is None:
        return ""
    if os.path.realpath(path) == os.path.realpath(sys.executable):
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    shown = subprocess.run([path, "-I", "-c", code], capture_output=True, text=True, timeout=_CHECK_S, check=False)
    return shown.stdout.strip()


def _digest(request: EnvironmentRequest, base: str) -> str:
    version = request.version or _version_of_python3()
    what = [_FORMAT, sorted(request.requirements), version, platform.system(), platform.machine(), base]
    what += [request.torch_backend] if request.torch_backend else []
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:20]


def _candidates(base: str) -> list[str]:
    named = os.environ.get("CLOUDGPU_PYTHON", "")
    found = [path for path in (shutil.which(named) if named else None, base if os.path.isabs(base) else None) if path]
    return list(dict.fromkeys(os.path.abspath(path) for path in found))


def _satisfies(interpreter: str, request: EnvironmentRequest) -> bool:
    program = pkgutil.get_data(__package__ or "", "requirements.py") or b""
    question = json.dumps({"requirements": request.requirements, "version": request.version})
    try:
        answer = subprocess.run(
            [interpreter, "-c", program.decode()],
            input=question.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",  # what lies in the caller's directory is not installed
            timeout=_CHECK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def _build_once(
    request: EnvironmentRequest, base: str, folder: str, progress: Callable[[str], None]
) -> tuple[str, bool]:
    try:
        os.makedirs(request.root, mode=0o700, exist_ok=True)
        lock = os.open(folder + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AgentError(f"cannot write {request.root}: {error.strerror}", hint="set CLOUDGPU_ENVS") from error
    try:
        if not files.try_lock(lock):
            progress("waiting for another node to build the same environment")
            files.wait_lock(lock)
        if _complete(folder):
            return _python(folder), False
        _build(request, base, folder, progress, lock)
    finally:
        os.close(lock)
    return _python(folder), True


def _build(request: EnvironmentRequest, base: str, folder: str, progress: Callable[[str], None], lock: int) -> None:
    """Build from nothing, in place: an environment knows its own path and cannot be moved there afterwards."""
    if os.path.lexists(folder):
        progress("removing what a killed build left")
        shutil.rmtree(folder)
    listed = folder + ".requirements.txt"

    def run(what: str, argv: list[str], settings: dict[str, str]) -> None:
        progress(what)
        subprocess_tool.run(argv, what, progress, holds=lock, env={**installer.environment(), **settings})

    try:
        _write_lines(listed, request.requirements)
        _make(request, base, folder, listed if request.requirements else "", run)
        made = {"requirements": list(request.requirements), "version": request.version, "base": base}
        files.write_json(os.path.join(folder, _MARKER), made)
    except OSError as error:
        raise AgentError(f"cannot build {folder}: {error.strerror}", hint="is the disk full?") from error
    finally:
        if os.path.exists(listed):
            os.unlink(listed)


def _make(request: EnvironmentRequest, base: str, folder: str, listed: str, run: Run) -> None:
    """The environment, and in it what is required.

    Raises:
        AgentError: A tool failed.
    """
    uv, python = installer.chosen_uv(base), _python(folder)
    make = [base, "-m", "venv", folder] if uv is None else [uv, "venv", "--no-project", "--python", base, folder]
    run("making a Python environment", make, {})
    if not listed:
        return
    settings: dict[str, str] = {}
    brought = uv is None
    if uv is None:
        uv, settings = _uv_from_pip(request, folder, run)
    if uv is None:
        run("installing the requirements", [*_pip(python), "-r", listed], {})
        return
    chosen = [] if request.torch_backend is None else ["--torch-backend", request.torch_backend]
    # Compiled here and once: else every rank's first import compiles the same files beside the others.
    install = [uv, "pip", "install", "--compile-bytecode", "--python", python, *chosen, "-r", listed]
    try:
        run("installing the requirements", install, {**_cache(request.root), **settings})
    except AgentError:
        if not brought or request.torch_backend is not None:
            raise
        # Nobody asked for uv here: what pip can do that uv cannot is not to fail for it.
        run("installing the requirements with pip, as uv could not", [*_pip(python), "-r", listed], {})


def _uv_from_pip(request: EnvironmentRequest, folder: str, run: Run) -> tuple[str | None, dict[str, str]]:
    """A uv that pip brings into the environment, with pip's sources in uv's words.

    It installs PyTorch in a quarter of pip's time. None where it cannot be had or would ask elsewhere, unless only uv
    can do what is wanted.

    Raises:
        AgentError: A build of PyTorch is wanted, which only uv knows how to choose, and pip cannot bring uv.
    """
    python = _python(folder)
    needed = request.torch_backend is not None
    settings = package_sources.uv_settings(python, installer.environment())
    if settings is None and not needed:
        return None, {}
    try:
        run("installing uv, which installs the rest", [*_pip(python), _UV], {})
    except AgentError:
        if needed:
            raise
        return None, {}
    return os.path.join(folder, "bin", "uv"), settings or {}


def _cache(root: str) -> dict[str, str]:
    """Where uv keeps what it downloads, unless somebody has said so: beside the environments.

    There it links files instead of copying gigabytes, the next environment finds them, and they go with the rest.
    """
    return {} if os.environ.get("UV_CACHE_DIR") else {"UV_CACHE_DIR": os.path.join(root, ".uv")}


def _pip(python: str) -> list[str]:
    # Its bars are for a terminal: lines of them tell nothing.
    return [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]


def _write_lines(path: str, lines: tuple[str, ...]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # an address may carry a password
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def _complete(folder: str) -> bool:
    """Whether it was built to the end, and the Python that it stands on is still there."""
    return os.path.exists(os.path.join(folder, _MARKER)) and os.access(_python(folder), os.X_OK)


def _python(folder: str) -> str:
    return os.path.join(folder, "bin", "python")
