"""Choose uv or pip to build environments, and translate pip's package sources to uv's settings."""

from __future__ import annotations

import ast
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
_SECTIONS = ("global", "install", ":env:")
"""Sections of pip's configuration, in pip's order. Later sections override earlier sections."""
_UV_VARIABLES: dict[str, tuple[str, ...]] = {
    "index-url": ("UV_DEFAULT_INDEX",),
    "extra-index-url": ("UV_INDEX",),
    "find-links": ("UV_FIND_LINKS",),
    "no-index": ("UV_NO_INDEX",),
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("HTTPS_PROXY", "HTTP_PROXY"),
    "trusted-host": ("UV_INSECURE_HOST",),
    "constraint": ("UV_CONSTRAINT",),
    "pre": (),
}
_IRRELEVANT = frozenset({
    "default-timeout", "timeout", "retries", "disable-pip-version-check", "no-input", "progress-bar", "cache-dir",
    "no-cache-dir", "no-color", "quiet", "verbose", "no-warn-script-location", "root-user-action", "no-compile",
    "break-system-packages", "require-virtualenv", "prefer-binary", "log", "user",
})  # fmt: skip
_COMMA = frozenset({"UV_FIND_LINKS"})


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


def uv_settings(python: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the variables that make uv use the package sources of this Python's pip.

    Return None if pip's settings cannot be read, or if uv cannot use these sources.
    """
    try:
        process = subprocess.run(
            [python, "-m", "pip", "config", "list"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CHECK_S,
            env=dict(environ),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return translate_pip_config(process.stdout) if process.returncode == 0 else None


def translate_pip_config(listed: str) -> dict[str, str] | None:
    """Translate the output of `pip config list` to uv's variables. Return None if uv cannot use the sources."""
    settings = _pip_settings(listed)
    if settings is None or not settings.keys() <= _UV_VARIABLES.keys() | _IRRELEVANT or _on(settings.get("pre", "")):
        return None
    # pip chooses the best version from all indexes. By default, uv uses only the first index that has the package.
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for name, value in settings.items():
        for variable in _UV_VARIABLES.get(name, ()):
            words = value.split()
            if words and (name != "no-index" or _on(value)):
                variables[variable] = (",".join if variable in _COMMA else " ".join)(words)
    return variables


def _pip_settings(listed: str) -> dict[str, str] | None:
    """Return the effective value of each setting, or None if the text is not a settings list."""
    by_section: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listed.splitlines():
        key, equals, value = line.partition("=")
        section, dot, name = key.partition(".")
        if not (equals and dot):
            return None
        if section in by_section:
            try:
                by_section[section][name] = str(ast.literal_eval(value))
            except (SyntaxError, ValueError):
                return None
    merged: dict[str, str] = {}
    for section in _SECTIONS:
        merged.update(by_section[section])
    return merged


def _on(value: str) -> bool:
    return value.strip().lower() in ("1", "true", "yes", "on", "y", "t")
