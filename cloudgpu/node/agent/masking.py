"""Mask secrets in output without changing its length, because logs are addressed by byte offset.

Programs print secrets in other forms: URLs quote them, JSON and Python escape them, shells quote them, and HTTP encodes
them in base64. All forms that `_unit` and `_encoded_values` describe are masked.

While a run is active, its secrets are in a file on tmpfs, never on a disk, so that other agent processes can mask them.
When the run ends, the secrets in the logs are overwritten, and the file is removed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
from contextlib import suppress
from typing import Iterable, Iterator
from urllib.parse import quote, quote_plus

from .untrusted_data import MALFORMED, AgentError

SHORTEST = 4
"""Length, in bytes, of the shortest text that is masked. Shorter secrets would mask ordinary words and numbers."""
_LONGEST_PATTERN = 4096
"""Longest line, in characters, for which a pattern is made. Longer lines are masked in the usual encodings only."""
_MOST_LINES = 256
"""Most lines of all secrets for which encodings are searched. Every further line is masked only as it is."""
_MOST_ROWS_BYTES = 1 << 14
"""Longest secret whose encoding is also searched for in separate lines."""
_UNRESERVED = re.compile(r"[A-Za-z0-9_.-]*")
"""Text that no encoding changes unless it changes every character."""
_SHORTEST_ROW = 8
"""Length of the shortest part of an encoded value that is masked. Shorter parts also occur by chance."""
_ROWS = (64, 76)
"""Lengths of the lines into which programs break base64."""
_NAMED = {
    " ": (b"+",),
    "\b": (b"\\b",),
    "\t": (b"\\t",),
    "\f": (b"\\f",),
    "\r": (b"\\r",),
    "&": (b"&amp;",),
    "<": (b"&lt;",),
    ">": (b"&gt;",),
    '"': (b"&quot;", b"&#34;"),
    "'": (b"'\"'\"'", b"'\\''", b"&#x27;", b"&#39;"),
}
"""Encodings of single characters in URLs, JSON, HTML and shells."""
FOLDER = "/dev/shm"  # noqa: S108 - the only tmpfs that every Linux system has and every user may write to
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_PIECE_BYTES = 4 << 20
_MOST_BYTES = 16 << 20


def is_maskable(secret: str) -> bool:
    """Return True if at least one line of a secret is long enough to be masked."""
    return any(len(line.strip().encode("utf-8", "surrogateescape")) >= SHORTEST for line in secret.split("\n"))


class Mask:
    """Masks every line of the given secrets, as it is and in the usual encodings."""

    def __init__(self, secrets: Iterable[str]) -> None:
        secrets = tuple(secrets)
        lines = sorted({line.strip() for secret in secrets for line in secret.split("\n")})
        lines = [line for line in lines if len(_bytes(line)) >= SHORTEST]
        texts = {_bytes(line) for line in lines}
        texts.update(text for line in lines[:_MOST_LINES] for text in _escaped_forms(line))
        texts.update(text for secret in secrets if is_maskable(secret) for text in _encoded_values(secret))
        self._texts = tuple(sorted(texts))
        mixed = [line for line in lines[:_MOST_LINES] if not _UNRESERVED.fullmatch(line)]
        patterns = [_pattern(line) for line in mixed if len(line) <= _LONGEST_PATTERN]
        self._patterns = tuple(re.compile(pattern) for pattern, _ in patterns)
        longest = [len(text) for text in self._texts] + [length for _, length in patterns]
        self.reach = max(longest, default=1) - 1
        """Number of bytes before and after a piece of output that can belong to a secret in it."""

    def __call__(self, data: bytes) -> bytes:
        """Return the output with an asterisk for every byte of a secret."""
        masked = None
        for start, end in self.found(data):
            masked = masked or bytearray(data)
            masked[start:end] = b"*" * (end - start)
        return data if masked is None else bytes(masked)

    def found(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield the start and end of every secret. Secrets may overlap, so each search continues one byte further."""
        for text in self._texts:
            start = data.find(text)
            while start >= 0:
                yield start, start + len(text)
                start = data.find(text, start + 1)
        for pattern in self._patterns:
            match = pattern.search(data)
            while match:
                yield match.span()
                match = pattern.search(data, match.start() + 1)

    def between(self, before: bytes, data: bytes, after: bytes) -> bytes:
        """Return masked output. Its first or last secret may begin in `before` or end in `after`."""
        return self(before + data + after)[len(before) : len(before) + len(data)]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _pattern(line: str) -> tuple[bytes, int]:
    """Return a regular expression that matches a line in any mixture of encodings, and the most bytes that it matches.

    Consecutive backslashes, and the character after them, are one unit: a quantifier for each of them could take
    exponential time.
    """
    parts = re.findall(r"(?s)(\\*)([A-Za-z0-9_.-]+|[^\\]|$)", line)
    units = [_unit(run, part[:1], part[1:]) for run, part in parts if run or part]
    return b"".join(pattern for pattern, _ in units), sum(length for _, length in units)


def _unit(run: str, character: str, rest: str) -> tuple[bytes, int]:
    """Return the regular expression for backslashes, the character after them and unreserved text, and its length.

    The length is the most bytes that the expression matches.
    """
    plain, slashes, tail = re.escape(_bytes(character)), len(run), re.escape(_bytes(rest))
    # `\"`, `\/`, `\'` and `\ `: JSON, Python and shells put a backslash before characters that are no letters.
    escaped = int(bool(character) and not _UNRESERVED.fullmatch(character))
    if not slashes and not escaped:
        return plain + tail, len(_bytes(character + rest))
    forms = sorted(_forms(character), key=len, reverse=True) if escaped else []
    coded = [_either_case(form) for form in forms]
    either = [b"\\\\{%d,%d}" % (slashes, 2 * slashes + escaped) + plain]
    if slashes:
        either.append(b"(?:\\\\u005[cC]|%%5[cC]|\\\\x5[cC]){%d}(?:" % slashes + b"|".join([*coded, plain]) + b")")
        coded = [b"\\\\{%d,%d}(?:" % (slashes, 2 * slashes) + b"|".join(coded) + b")"] if coded else []
    longest = max(map(len, [*forms, _bytes(character)])) + 6 * slashes + 1 + len(_bytes(rest))
    return b"(?:" + b"|".join([*coded, *either]) + b")" + tail, longest


def _forms(character: str) -> Iterator[bytes]:
    """Yield the encodings of a character other than itself, and other than itself after a backslash."""
    raw = _bytes(character)
    yield b"".join(b"%%%02x" % byte for byte in raw)
    yield from _NAMED.get(character, ())
    if len(raw) == 1:
        yield b"\\u%04x" % raw[0]
        yield b"\\x%02x" % raw[0]
        return
    yield b"".join(b"\\x%02x" % byte for byte in raw)
    yield b"".join(b"\\%03o" % byte for byte in raw)
    yield json.dumps(character)[1:-1].encode()
    yield ascii(character)[1:-1].encode()


def _either_case(form: bytes) -> bytes:
    """Return the regular expression for an encoding, whose hexadecimal digits may be in either case."""
    escaped = re.escape(form)
    if form[:1] == b"%" or form[:2] in (b"\\u", b"\\U", b"\\x"):
        return re.sub(rb"(?<![\\])[a-f]", lambda digit: b"[" + digit[0] + digit[0].upper() + b"]", escaped)
    return escaped


def _escaped_forms(line: str) -> Iterator[bytes]:
    """Yield the encodings that change every character, and the usual ones of a line that is too long for a pattern."""
    raw = _bytes(line)
    for digits in ("%02x", "%02X"):
        yield b"".join(b"%" + (digits % byte).encode() for byte in raw)
        yield b"".join(b"\\x" + (digits % byte).encode() for byte in raw)
    units = line.encode("utf-16-be", "surrogatepass")
    for digits in ("%04x", "%04X"):
        codes = (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
        yield b"".join(b"\\u" + (digits % code).encode() for code in codes)
    if len(line) > _LONGEST_PATTERN:
        yield from map(_bytes, _usual_forms(line))


def _usual_forms(line: str) -> Iterator[str]:
    for safe in ("", "/", "!'()*"):
        quoted = quote(line, safe=safe, errors="surrogateescape")
        yield quoted
        yield re.sub("%..", lambda code: code[0].lower(), quoted)
    yield quote_plus(line, errors="surrogateescape")
    for ascii_only in (True, False):
        text = json.dumps(line, ensure_ascii=ascii_only)[1:-1]
        yield text
        yield text.replace("/", "\\/")
    yield repr(line)[1:-1]
    yield line.replace("'", "'\"'\"'")


def _encoded_values(secret: str) -> Iterator[bytes]:
    """Yield the base64 and hexadecimal encodings of a whole secret, also where it is a part of the encoded text.

    base64 encodes three bytes in four characters, so there are three encodings of a part. The characters at its ends
    depend on the text around it and are left out.
    """
    for value in {_bytes(secret), _bytes(secret.strip())}:
        yield value.hex().encode()
        yield value.hex().upper().encode()
        for alphabet in (None, b"-_"):
            whole = base64.b64encode(value, alphabet)
            yield whole
            yield whole.rstrip(b"=")
            for shift in range(3):
                encoded = base64.b64encode(bytes(shift) + value, alphabet)
                complete = len(bytes(shift) + value) * 8 // 6
                inner = encoded[-(-shift * 8 // 6) : complete]
                if len(inner) >= _SHORTEST_ROW:
                    yield inner
            if len(value) <= _MOST_ROWS_BYTES:
                yield from _rows(whole)


def _rows(encoded: bytes) -> Iterator[bytes]:
    """Yield the lines of base64 that a program breaks into lines."""
    for length in _ROWS:
        rows = [encoded[at : at + length] for at in range(0, len(encoded), length)]
        yield from (row for row in rows if len(row) >= _SHORTEST_ROW)


def path_of(run_dir: str) -> str:
    """Return the path of the secrets of the run in this directory."""
    digest = hashlib.sha256(os.path.realpath(run_dir).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return os.path.join(FOLDER, f"cloudgpu-{os.geteuid()}-{digest}")


def write(run_dir: str, secrets: dict[str, str]) -> None:
    """Write the secrets of a run that starts. Without secrets, nothing is written."""
    if not secrets:
        return
    if not _is_in_memory(FOLDER):
        raise AgentError(
            f"{FOLDER} is not on tmpfs, so the secrets would be written to a disk", hint=f"mount tmpfs at {FOLDER}"
        )
    path = path_of(run_dir)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        # Every user can write to the folder: O_EXCL rejects a file or link that somebody else put there.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(json.dumps(secrets).encode())
    except OSError as error:
        raise AgentError(
            f"cannot write {path}: {error.strerror}", hint=f"free space in {FOLDER} on the node"
        ) from error


def read_mask(run_dir: str) -> Mask:
    """Return the mask for the output of a run. It masks nothing if the run has no secrets or has ended."""
    try:
        handle = os.open(path_of(run_dir), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return Mask(())
    with os.fdopen(handle, "rb") as stream:
        info = os.fstat(handle)
        if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
            return Mask(())
        try:
            return Mask([str(value) for value in json.loads(stream.read(_MOST_BYTES)).values()])
        except MALFORMED:
            return Mask(())


def finish(run_dir: str, logs: Iterable[str]) -> None:
    """Overwrite the secrets in the logs of a run that has ended, then remove its file.

    If a log cannot be written, the file stays, so that the log is still masked when it is read.
    """
    mask = read_mask(run_dir)
    try:
        if mask.reach:
            for log in logs:
                _overwrite(log, mask)
    except OSError:
        return
    remove(run_dir)


def remove(run_dir: str) -> None:
    """Remove the secrets of a run. It is not an error if there are none."""
    with suppress(OSError):
        os.unlink(path_of(run_dir))


def masked_at(handle: int, offset: int, data: bytes, mask: Mask) -> bytes:
    """Return masked data that was read from an open log at this offset."""
    if not mask.reach:
        return data
    first = max(0, offset - mask.reach)
    before = os.pread(handle, offset - first, first)
    return mask.between(before, data, os.pread(handle, mask.reach, offset + len(data)))


def _overwrite(log: str, mask: Mask) -> None:
    try:
        handle = os.open(log, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        offset = 0
        while True:
            # A secret that begins in this piece may end in the next.
            data = os.pread(handle, _PIECE_BYTES + mask.reach, offset)
            if not data:
                return
            masked = mask(data)
            if masked != data:
                os.pwrite(handle, masked, offset)
            offset += _PIECE_BYTES
    finally:
        os.close(handle)


def _is_in_memory(folder: str) -> bool:
    """Return True if the file system of a directory keeps its files in memory."""
    folder = os.path.realpath(folder)
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as stream:
            mounts = [line.split(" ") for line in stream if line.count(" ") > 1]
    except OSError:
        return False
    above = [(mount[1], mount[2]) for mount in mounts if f"{folder}/".startswith(f"{mount[1].rstrip('/')}/")]
    # The last of several mounts at the same place is the visible one.
    kinds = {place: kind for place, kind in above}
    return bool(kinds) and kinds[max(kinds, key=len)] in _IN_MEMORY
