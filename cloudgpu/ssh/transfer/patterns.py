"""Match paths against globs for downloads. A matching directory includes everything below it."""

import os
import re
from collections.abc import Callable, Sequence

from cloudgpu.errors import UsageError
from cloudgpu.ssh.transfer.glob import translate
from cloudgpu.ssh.transfer.node_read import matches


def glob_regex(pattern: str) -> str:
    """Return a glob's regular expression over path bytes, as text with surrogates, which JSON preserves exactly."""
    bare = pattern.removeprefix("./").strip("/")
    try:
        translated = translate(os.fsencode(bare if bare not in ("", ".") else "**"))
    except UnicodeEncodeError:  # half of a surrogate pair, which no file name contains
        translated = None
    if translated is None:
        raise UsageError(f"{pattern!r} is not a valid file pattern", hint="check the brackets and backslashes")
    return os.fsdecode(translated)


def glob_regexes(patterns: Sequence[str]) -> list[str]:
    """Return the regular expressions of all patterns, or one that matches everything if there are none."""
    return [glob_regex(pattern) for pattern in patterns or ("**",)]


def path_matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that returns True for a path that matches at least one pattern.

    Without patterns, every path matches.
    """
    compiled = [re.compile(os.fsencode(text), re.DOTALL) for text in glob_regexes(patterns)]
    return lambda path: any(matches(pattern, os.fsencode(path)) for pattern in compiled)
