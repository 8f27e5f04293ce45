"""Choose the tool that builds environments: uv, or venv and pip if uv is missing or only pip is configured."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Mapping

_PIP_SOURCES = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "cert",
    "client-cert",
    "proxy",
    "trusted-host",
    "constraint",
)
_UV_SOURCES = (
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_TORCH_BACKEND",
    "UV_CONFIG_FILE",
)
_PIP_FILES = ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf")
_UV_FILES = ("/etc/uv/uv.toml", "~/.config/uv/uv.toml")
_IN_A_PIP_FILE = re.compile(rf"^\s*(?:{'|'.join(_PIP_SOURCES)})\s*[=:]", re.MULTILINE)
_CHECK_S = 60.0


def find_uv() -> str | None:
    """Return the path of uv, or None. uv may be in a directory that is not on the PATH of an SSH command."""
    return shutil.which("uv") or shutil.which("uv", path=os.path.expanduser("~/.local/bin"))


def chosen_uv(base: str) -> str | None:
    """Return the uv to build with, or None to use `venv` and `pip` of `base`.

    uv ignores pip's settings, so if only pip is configured, uv would use the wrong index or not trust the right one.
    If `base` cannot create environments, use uv anyway.
    """
    uv = find_uv()
    if uv is None or not os.path.isabs(base):
        return uv
    only_pip_configured = _pip_is_configured(os.environ) and not _uv_is_configured(os.environ)
    return None if only_pip_configured and _makes_environments(base) else uv


def clean_environment() -> dict[str, str]:
    """Return the environment variables for a build.

    The variables of an active virtual environment are left out, because they could mislead tools.
    """
    dropped = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "CONDA_PREFIX")
    # pip uses the system's CA store, including company CAs; uv does so only if one of these variables is set.
    trust = {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}
    return {**trust, **{key: value for key, value in os.environ.items() if key not in dropped}}


def _pip_is_configured(settings: Mapping[str, str]) -> bool:
    variables = ("PIP_" + name.upper().replace("-", "_") for name in _PIP_SOURCES)
    if any(settings.get(name) for name in variables):
        return True
    config_file = settings.get("PIP_CONFIG_FILE", "")
    if config_file == os.devnull:  # by pip's convention, this value means that no file is read
        return False
    return any(_IN_A_PIP_FILE.search(_text(path)) for path in (config_file, *_PIP_FILES))


def _uv_is_configured(settings: Mapping[str, str]) -> bool:
    return any(settings.get(name) for name in _UV_SOURCES) or any(map(_text, _UV_FILES))


def _text(path: str) -> str:
    """Return the content of a settings file; empty if it is missing or unreadable."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _makes_environments(base: str) -> bool:
    """Return True if this Python can create environments. Debian packages parts of `venv` separately."""
    try:
        process = subprocess.run(
            [base, "-I", "-c", "import ensurepip, venv"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_CHECK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return process.returncode == 0
