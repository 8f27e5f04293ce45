"""Which files a list of globs means, for fetching: whole paths, and a directory stands for all below it."""

import os
import re
from collections.abc import Iterable, Sequence

from cloudgpu.errors import UsageError
from cloudgpu.ssh.transfer.glob import translate
from cloudgpu.ssh.transfer.node_read import matches


def regex(pattern: str) -> str:
    """The regular expression of one glob, over the path's bytes; text with surrogates, so that it survives JSON.

    Raises:
        UsageError: It is not a glob.
    """
    bare = pattern.removeprefix("./").strip("/")
    try:
        translated = translate(os.fsencode(bare if bare not in ("", ".") else "**"))
    except UnicodeEncodeError:  # half of a surrogate pair, which no file name holds
        translated = None
    if translated is None:
        raise UsageError(f"{pattern!r} is not a file pattern", hint="check its brackets, backslashes and characters")
    return os.fsdecode(translated)


def regexes(patterns: Sequence[str]) -> list[str]:
    """All of them; no pattern at all means everything.

    Raises:
        UsageError: One is not a glob.
    """
    return [regex(pattern) for pattern in patterns or ("**",)]


def matching(paths: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The paths that match, in the order given.

    Raises:
        UsageError: A pattern is not a glob.
    """
    compiled = [re.compile(os.fsencode(text), re.DOTALL) for text in regexes(patterns)]
    return [path for path in paths if any(matches(pattern, os.fsencode(path)) for pattern in compiled)]
