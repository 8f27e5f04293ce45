"""Read a file of environment variables with one NAME=VALUE per line, as other tools read `.env` files."""

import re
from pathlib import Path
from typing import Final

from cloudgpu.errors import UsageError
from cloudgpu.files import SAVE_AS_UTF8, SETTINGS_BYTES, NotUtf8Error, read_text

_LINE: Final = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)")
_COMMENT: Final = re.compile(r"\s+#.*")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


def read_env_file(path: Path) -> dict[str, str]:
    r"""Return the variables in a file. A later line overrides an earlier one.

    Empty lines and lines that begin with `#` are skipped, and a line may begin with `export`. A value in single quotes
    is taken literally; in double quotes, a backslash escapes the next character, and `\n` and `\t` are a newline and a
    tab; without quotes, the value ends before ` #`. References to other variables are not expanded.
    """
    try:
        text = read_text(path, SETTINGS_BYTES)
    except NotUtf8Error as err:
        raise UsageError(f"{path} is not UTF-8 text", hint=SAVE_AS_UTF8) from err
    except OSError as err:
        raise UsageError(f"cannot read {path}: {err.strerror}", hint="check the path given to --env-file") from err
    variables: dict[str, str] = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        value = None if match is None else _value(match["value"])
        if match is None or value is None:
            fault = (
                "expected NAME=VALUE" if match is None else "a quote is not closed, or text follows the closing quote"
            )
            raise UsageError(
                f"{path}:{number}: {fault}", hint="write one NAME=VALUE per line; a value cannot span lines"
            )
        variables[match["name"]] = value
    return variables


def _value(text: str) -> str | None:
    """Return the value without quotes and escapes, or None if a quote is not closed or text follows it."""
    quote = text[:1]
    if quote not in ("'", '"'):
        return _COMMENT.sub("", f" {text}").strip()
    value, position = "", 1
    while position < len(text) and text[position] != quote:
        escaped = quote == '"' and text[position] == "\\" and position + 1 < len(text)
        position += escaped
        value += _ESCAPES.get(text[position], text[position]) if escaped else text[position]
        position += 1
    rest = text[position + 1 :].strip()
    return value if position < len(text) and (not rest or rest.startswith("#")) else None
