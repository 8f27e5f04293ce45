"""`env`: find a Python interpreter that meets the recipe's requirements, or build an environment that does."""

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
from ..untrusted_data import AgentError
from . import installer

Run = Callable[[str, List[str], Dict[str, str]], None]
"""Function that runs a tool, given a description for progress lines, the command line, and extra environment
variables."""

_MARKER = ".cloudgpu-complete.json"
"""File that is written last. An environment without this file was left by an interrupted build."""
_FORMAT = 1
"""Version of the environments' layout. It is part of their directory names, so that a new layout causes a rebuild."""
_CHECK_S = 60.0
_BACKEND = re.compile(r"cu\d{2,3}")
_UV = "uv>=0.7.14"
"""Requirement for uv: the first version in which `--torch-backend` is stable."""
_INSTALL = subprocess_tool.ToolOptions(
    hint="check the names and versions in environment.python.requirements, and that the node can reach the package "
    "index"
)


@dataclass(frozen=True)
class EnvironmentRequest:
    """The interpreter that a recipe needs: its Python version and installed packages."""

    requirements: tuple[str, ...]
    version: str | None
    root: str
    torch_backend: str | None = None
    """PyTorch build to install, such as `cu126`. Only uv can select a build."""
    setup: str = ""
    """Digest of the recipe's setup, which may install packages, so that its environment is not shared."""


def prepare_environment(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Print progress lines, then `{"interpreter": path, "built": bool}`."""
    request = _read(spec)
    interpreter, built = provide_environment(request, lambda text: emit({"progress": text}))
    emit({"interpreter": interpreter, "built": built})


def provide_environment(request: EnvironmentRequest, progress: Callable[[str], None]) -> tuple[str, bool]:
    """Find a suitable interpreter or build an environment. Return the interpreter, and True if this call built it."""
    base = _base(request.version)
    folder = os.path.join(request.root, _digest(request, base))
    if _complete(folder):
        return _python(folder), False
    # Package metadata does not reliably show which PyTorch build is installed, and a setup may change the environment:
    # build a separate one.
    ready = (
        None
        if request.torch_backend or request.setup
        else next((python for python in _candidates(base) if _satisfies(python, request)), None)
    )
    if ready is not None:
        return ready, False
    return _build_once(request, base, folder, progress)


def _read(spec: dict[str, Any]) -> EnvironmentRequest:
    requirements, version, backend = spec.get("requirements") or [], spec.get("version"), spec.get("torch_backend")
    if not isinstance(requirements, list) or not all(
        isinstance(line, str) and "\n" not in line for line in requirements
    ):
        raise AgentError("env: requirements must be a list of single-line strings")
    if version is not None and not isinstance(version, str):
        raise AgentError("env: version must be a string, for example 3.11")
    if backend is not None and not (isinstance(backend, str) and _BACKEND.fullmatch(backend)):
        raise AgentError("env: torch_backend must be one of PyTorch's CUDA builds, for example cu126")
    setup = spec.get("setup") or ""
    if not isinstance(setup, str):
        raise AgentError("env: setup must be a digest")
    root = spec.get("root") or os.environ.get("CLOUDGPU_ENVS") or "~/.cloudgpu/envs"
    return EnvironmentRequest(tuple(requirements), version, os.path.abspath(os.path.expanduser(root)), backend, setup)


def _base(version: str | None) -> str:
    """Return the base Python: a path, or a version that uv finds or downloads."""
    names = ["python3"] if version is None else [f"python{version}"]
    if version is not None and version == _version_of_python3():
        names.append("python3")
    path_of_python = next((path for path in map(shutil.which, names) if path), None)
    if path_of_python is not None:
        return path_of_python
    if version is not None and installer.find_uv():
        return version
    raise AgentError(
        f"Python {version or 3} is not installed on this node",
        hint="on the node, install this Python version, or install uv, which downloads it",
    )


def _version_of_python3() -> str:
    """Return the version of `python3` on PATH, usually the interpreter that runs this program."""
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
    key = [_FORMAT, sorted(request.requirements), version, platform.system(), platform.machine(), base]
    key += [request.torch_backend] if request.torch_backend else []
    # Otherwise an environment with another build of PyTorch would be used again.
    user_backend = None if request.torch_backend else _user_backend()
    key += [{"UV_TORCH_BACKEND": user_backend}] if user_backend else []
    key += [{"setup": request.setup}] if request.setup else []
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]


def _user_backend() -> str | None:
    """Return the PyTorch build that the user selected with uv's variable, which pip ignores; None if there is none."""
    return os.environ.get("UV_TORCH_BACKEND") or None


def _candidates(base: str) -> list[str]:
    configured = os.environ.get("CLOUDGPU_PYTHON", "")
    paths = [
        path
        for path in (shutil.which(configured) if configured else None, base if os.path.isabs(base) else None)
        if path
    ]
    return list(dict.fromkeys(os.path.abspath(path) for path in paths))


def _satisfies(interpreter: str, request: EnvironmentRequest) -> bool:
    program = pkgutil.get_data(__package__ or "", "requirements.py") or b""
    question = json.dumps({"requirements": request.requirements, "version": request.version})
    try:
        answer = subprocess.run(
            [interpreter, "-c", program.decode()],
            input=question.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",  # modules in the caller's directory are not installed packages
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
        raise AgentError(
            f"cannot write {request.root}: {error.strerror}",
            hint="on the node, set CLOUDGPU_ENVS to a writable directory",
        ) from error
    try:
        if not files.try_lock(lock):
            progress("waiting for another process to build the same environment")
            files.wait_lock(lock)
        if _complete(folder):
            return _python(folder), False
        _build(request, base, folder, progress, lock)
    finally:
        os.close(lock)
    return _python(folder), True


def _build(request: EnvironmentRequest, base: str, folder: str, progress: Callable[[str], None], lock: int) -> None:
    """Build an environment from scratch at its final path, which the environment's files contain."""
    if os.path.lexists(folder):
        progress("removing an interrupted build")
        shutil.rmtree(folder)
    requirements_file = folder + ".requirements.txt"

    def run(what: str, argv: list[str], settings: dict[str, str]) -> None:
        progress(what)
        environment = {**installer.clean_environment(), **settings}
        subprocess_tool.run(argv, what, progress, holds=lock, env=environment, options=_INSTALL)

    try:
        _write_lines(requirements_file, request.requirements)
        _make(request, base, folder, requirements_file if request.requirements else "", run)
        marker = {"requirements": list(request.requirements), "version": request.version, "base": base}
        files.write_json(os.path.join(folder, _MARKER), marker)
    except OSError as error:
        raise AgentError(f"cannot build {folder}: {error.strerror}", hint="check the free disk space") from error
    finally:
        if os.path.exists(requirements_file):
            os.unlink(requirements_file)


def _make(request: EnvironmentRequest, base: str, folder: str, requirements_file: str, run: Run) -> None:
    """Create the environment and install the requirements."""
    uv, python = installer.chosen_uv(base), _python(folder)
    make = [base, "-m", "venv", folder] if uv is None else [uv, "venv", "--no-project", "--python", base, folder]
    run("creating a Python environment", make, {})
    if not requirements_file:
        return
    settings: dict[str, str] = {}
    installed_uv = uv is None
    if uv is None:
        uv, settings = _uv_from_pip(request, folder, run)
    if uv is None:
        run("installing the requirements", [*_pip(python), "-r", requirements_file], {})
        return
    backend_options = [] if request.torch_backend is None else ["--torch-backend", request.torch_backend]
    # Compile bytecode once here; otherwise every rank compiles the same files at its first import.
    install = [
        uv,
        "pip",
        "install",
        "--compile-bytecode",
        "--python",
        python,
        *backend_options,
        "-r",
        requirements_file,
    ]
    try:
        run("installing the requirements", install, {**_cache(request.root), **settings})
    except AgentError:
        if not installed_uv or request.torch_backend is not None or _user_backend() is not None:
            raise
        # The user did not choose uv, so fall back to pip for packages that only pip can install.
        run("installing the requirements with pip instead of uv", [*_pip(python), "-r", requirements_file], {})


def _uv_from_pip(request: EnvironmentRequest, folder: str, run: Run) -> tuple[str | None, dict[str, str]]:
    """Install uv into the environment with pip, because uv is faster.

    Return uv's path and the environment variables that make uv use pip's package sources. Return `(None, {})` if uv
    cannot use these sources or cannot be installed, unless the request or the user specifies a PyTorch build, which
    only uv can select.
    """
    python = _python(folder)
    needed = request.torch_backend is not None or _user_backend() is not None
    settings = installer.uv_settings(python, installer.clean_environment())
    if settings is None and not needed:
        return None, {}
    try:
        run("installing uv", [*_pip(python), _UV], {})
    except AgentError:
        if needed:
            raise
        return None, {}
    return os.path.join(folder, "bin", "uv"), settings or {}


def _cache(root: str) -> dict[str, str]:
    """Return the variable that puts uv's cache next to the environments, unless UV_CACHE_DIR is set.

    On the same file system, uv can hard-link files instead of copying gigabytes. Later environments reuse the cache,
    and deleting the environments' directory deletes the cache too.
    """
    return {} if os.environ.get("UV_CACHE_DIR") else {"UV_CACHE_DIR": os.path.join(root, ".uv")}


def _pip(python: str) -> list[str]:
    # Progress bars are useless outside a terminal.
    return [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]


def _write_lines(path: str, lines: tuple[str, ...]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # a URL may contain a password
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def _complete(folder: str) -> bool:
    """Return True if the build finished and the base Python still exists."""
    return os.path.exists(os.path.join(folder, _MARKER)) and os.access(_python(folder), os.X_OK)


def _python(folder: str) -> str:
    return os.path.join(folder, "bin", "python")
