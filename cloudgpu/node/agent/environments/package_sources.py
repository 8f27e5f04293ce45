"""Translate pip's package source settings to uv's, so that uv uses the same indexes."""

from __future__ import annotations

import ast
import subprocess
from typing import Mapping

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
