"""Read the host keys in OpenSSH's `known_hosts` files, with the rules by which OpenSSH finds the lines of a host."""

import base64
import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu.errors import HostKeyError
from cloudgpu.files import KNOWN_HOSTS_BYTES, read_bytes
from cloudgpu.ssh.keys import fingerprint
from cloudgpu.text import command

SSH_PORT: Final = 22
_REVOKED: Final = "@revoked"
_AUTHORITY: Final = "@cert-authority"
_HASHED: Final = "|1|"
_LONGEST_PATTERN: Final = 1023
"""OpenSSH rejects a line with a longer pattern."""
_LENGTH_BYTES: Final = 4


@dataclass(frozen=True)
class _Line:
    """A line of a `known_hosts` file. `marker` is empty for a plain host key."""

    marker: str
    hosts: str
    blob: bytes


def known_keys(address: str, port: int, files: Sequence[Path]) -> tuple[str, ...]:
    """Return the fingerprints of all keys of a host, without revoked keys.

    As in OpenSSH, keys that are listed without a port count for another port only if none is listed with that port.
    """
    lines = list(_lines(files))
    names = _names(address, port)
    revoked = {
        line.blob for line in lines if line.marker == _REVOKED and any(_matches(name, line.hosts) for name in names)
    }
    for name in names:
        blobs = [line.blob for line in lines if not line.marker and _matches(name, line.hosts)]
        if blobs:
            return tuple(dict.fromkeys(fingerprint(blob) for blob in blobs if blob not in revoked))
    return ()


def authority_note(address: str, port: int, files: Sequence[Path]) -> str:
    """Return what to add to the message about an unknown host key; empty unless an authority may certify the key."""
    names = _names(address, port)
    authorities = [line for line in _lines(files) if line.marker == _AUTHORITY]
    if not any(_matches(name, line.hosts) for line in authorities for name in names):
        return ""
    return "; your known_hosts has a @cert-authority for it, but cloudgpu does not support host certificates"


def _names(address: str, port: int) -> tuple[str, ...]:
    """Return the names under which OpenSSH looks up a host, in this order."""
    host = address.lower()
    return (host,) if port == SSH_PORT else (f"[{host}]:{port}", host)


def _lines(files: Sequence[Path]) -> Iterator[_Line]:
    """Yield the valid lines of all files. OpenSSH ignores the other lines, too."""
    for path in files:
        if not path.is_file():
            continue
        for text in _text(path).split("\n"):
            words = text.split()
            if not words or words[0].startswith("#"):
                continue
            marker = words.pop(0) if words[0].startswith("@") else ""
            blob = _key_blob(words)
            if blob is not None and marker in ("", _REVOKED, _AUTHORITY):
                yield _Line(marker, words[0], blob)


def _text(path: Path) -> str:
    try:
        return read_bytes(path, KNOWN_HOSTS_BYTES).decode("utf-8", "replace")
    except OSError as err:
        message = f"cannot read the known host keys in {path}: {err.strerror}"
        raise HostKeyError(
            message, hint=f"check the permissions with `{command('ls', '-l', str(path))}`, or move the file elsewhere"
        ) from err


def _key_blob(words: Sequence[str]) -> bytes | None:
    """Return the key of a line, whose fields are hosts, key type and key; None if the line is malformed."""
    match words:
        case [_, kind, encoded, *_]:
            pass
        case _:
            return None
    try:
        blob = base64.b64decode(encoded, validate=True)
    except ValueError:
        return None
    length = int.from_bytes(blob[:_LENGTH_BYTES], "big")
    return blob if blob[_LENGTH_BYTES : _LENGTH_BYTES + length] == kind.encode() else None


def _matches(name: str, hosts: str) -> bool:
    """Return True if the host field of a line matches a name in lower case.

    The field is either one hashed name, or a list of patterns, of which none with `!` and at least one other matches.
    """
    if hosts.startswith("|"):
        return _matches_hash(name, hosts)
    found = False
    for word in hosts.lower().split(","):
        pattern = word.removeprefix("!")
        if len(pattern) > _LONGEST_PATTERN:
            return False
        if _matches_pattern(name, pattern):
            if pattern != word:
                return False
            found = True
    return found


def _matches_hash(name: str, hashed: str) -> bool:
    if not hashed.startswith(_HASHED):
        return False
    salt, _, digest = hashed[len(_HASHED) :].partition("|")
    try:
        expected = hmac.new(base64.b64decode(salt, validate=True), name.encode(), hashlib.sha1)
        return hmac.compare_digest(expected.digest(), base64.b64decode(digest, validate=True))
    except ValueError:
        return False


def _matches_pattern(name: str, pattern: str) -> bool:
    """Match a name with a pattern in which `*` stands for any text and `?` for any character, in bounded time."""
    at = in_pattern = 0
    star, resume = -1, 0
    while at < len(name):
        if in_pattern < len(pattern) and pattern[in_pattern] == "*":
            star, resume = in_pattern, at
            in_pattern += 1
        elif in_pattern < len(pattern) and pattern[in_pattern] in ("?", name[at]):
            at, in_pattern = at + 1, in_pattern + 1
        elif star >= 0:
            # Let the last `*` stand for one more character.
            resume += 1
            at, in_pattern = resume, star + 1
        else:
            return False
    return not pattern[in_pattern:].strip("*")
