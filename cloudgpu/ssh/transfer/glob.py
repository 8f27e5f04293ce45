"""Translate glob patterns with git's semantics into regular expressions over bytes.

File names are bytes, and git's `?` matches one byte of a UTF-8 name.

A pattern such as `*a*a*a*a*b` would take `re` exponential time, on this machine and on the nodes. Between two
asterisks, the first match is always sufficient, because the second asterisk matches whatever follows. The expressions
therefore keep `re` from trying another one: `(?=(?P<name>...))(?P=name)` is an atomic group for Python 3.8, which the
nodes may have.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence

from cloudgpu.errors import UsageError
from cloudgpu.ssh.transfer.node_read import matches

_CLASSES = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"\x21-\x7e",
    b"lower": rb"a-z",
    b"print": rb"\x20-\x7e",
    b"punct": rb"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e",
    b"space": rb" \t\n\r\f\v",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}
_NOT_SLASH = rb"[^/]"
_STAR = _NOT_SLASH + b"*"
_DIRECTORIES = rb"(?:.*/)?"
_LITERAL = re.compile(rb"[^*?\[\\]*")


def translate(glob: bytes) -> bytes | None:
    """Return the regular expression for a path relative to the pattern's directory, or None if nothing can match."""
    literal = _LITERAL.match(glob)
    plain = literal.group() if literal else b""
    pieces = [re.escape(plain)]
    glob = glob[len(plain) :]  # git matches the literal prefix separately, so the `**` in `a**/b` spans directories
    at = 0
    while at < len(glob):
        step = _STEPS.get(glob[at : at + 1], _literal)(glob, at)
        if step is None:
            return None
        piece, at = step
        pieces.append(piece)
    return _joined(pieces)


def _joined(pieces: Sequence[bytes]) -> bytes:
    """Join the pieces so that no asterisk is tried again after the text up to the next asterisk has matched."""
    numbers = itertools.count()
    first, *others = _split(pieces, _DIRECTORIES)
    out = _in_components(first, numbers)
    for place, run in enumerate(others, 1):
        text = _in_components(run, numbers)
        last = place == len(others)
        out += _DIRECTORIES + text if last else _atomic(rb"(?:.*?/)??" + text, numbers)
    return out


def _in_components(pieces: Sequence[bytes], numbers: Iterator[int]) -> bytes:
    return b"/".join(_in_component(component, numbers) for component in _split(pieces, b"/"))


def _in_component(pieces: Sequence[bytes], numbers: Iterator[int]) -> bytes:
    first, *others = (b"".join(run) for run in _split(pieces, _STAR))
    between = b"".join(_atomic(_STAR + b"?" + text, numbers) for text in others[:-1])
    return first + between + b"".join(_STAR + text for text in others[-1:])


def _atomic(pattern: bytes, numbers: Iterator[int]) -> bytes:
    name = b"g%d" % next(numbers)
    return b"(?=(?P<" + name + b">" + pattern + b"))(?P=" + name + b")"


def _split(pieces: Sequence[bytes], separator: bytes) -> list[list[bytes]]:
    runs: list[list[bytes]] = [[]]
    for piece in pieces:
        if piece == separator:
            runs.append([])
        else:
            runs[-1].append(piece)
    return runs


def _literal(glob: bytes, at: int) -> tuple[bytes, int]:
    return re.escape(glob[at : at + 1]), at + 1


def _escaped(glob: bytes, at: int) -> tuple[bytes, int] | None:
    """Escape the character after a backslash. A backslash at the end makes the pattern invalid."""
    return _literal(glob, at + 1) if at + 1 < len(glob) else None


def _any_one(_: bytes, at: int) -> tuple[bytes, int]:
    return _NOT_SLASH, at + 1


def _stars(glob: bytes, at: int) -> tuple[bytes, int]:
    """Translate asterisks. `**` spans directories only if it is alone between slashes; otherwise it acts like `*`."""
    end = at
    while glob[end : end + 1] == b"*":
        end += 1
    alone = (at == 0 or glob[at - 1 : at] == b"/") and glob[end : end + 1] in (b"", b"/")
    if end == at + 1 or not alone:
        return _STAR, end
    if end == len(glob):
        return b".*", end
    return _DIRECTORIES, end + 1


def _bracket(glob: bytes, at: int) -> tuple[bytes, int] | None:
    """Translate a set of characters, which never matches a slash. An unclosed set makes the pattern invalid."""
    at += 1
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    members: list[bytes] = []
    first = True
    while first or glob[at : at + 1] != b"]":
        member = _member(glob, at)
        if member is None:
            return None
        members.append(member[0])
        at = member[1]
        first = False
    body = b"".join(members)
    if negated:
        return rb"[^/" + body + b"]", at + 1
    return rb"(?!/)[" + body + b"]", at + 1


def _member(glob: bytes, at: int) -> tuple[bytes, int] | None:
    """Translate a member of a set: a class, a range or a character. A reversed range matches its first character."""
    if glob[at : at + 2] == b"[:":
        end = glob.find(b"]", at + 2)
        if end > at + 2 and glob[end - 1 : end] == b":":
            named = _CLASSES.get(glob[at + 2 : end - 1])
            return None if named is None else (named, end + 1)
    low = _character(glob, at)
    if low is None:
        return None
    at = low[1]
    if glob[at : at + 1] != b"-" or glob[at + 1 : at + 2] in (b"]", b""):
        return _hex(low[0]), at
    high = _character(glob, at + 1)
    if high is None:
        return None
    return _hex(low[0]) + b"-" + _hex(max(low[0], high[0])), high[1]


def _character(glob: bytes, at: int) -> tuple[int, int] | None:
    at += glob[at : at + 1] == b"\\"
    return (glob[at], at + 1) if at < len(glob) else None


def _hex(character: int) -> bytes:
    return b"\\x%02x" % character


_STEPS: dict[bytes, Callable[[bytes, int], tuple[bytes, int] | None]] = {
    b"\\": _escaped,
    b"?": _any_one,
    b"*": _stars,
    b"[": _bracket,
}


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
