"""Split user data, as cloud-init does, into parts that run at every boot, parts that run once, and rejected parts."""

import email
import email.policy
import zlib
from dataclasses import dataclass
from typing import Literal

_LIMIT_BYTES = 16 * 1024 * 1024
"""Limit for the total size of all unpacked parts, so that a small gzip file cannot exhaust the memory."""

Kind = Literal["boothook", "script"]
_TYPES: dict[str, Kind] = {"text/cloud-boothook": "boothook", "text/x-shellscript": "script"}
_MARKS: tuple[tuple[bytes, Kind], ...] = ((b"#cloud-boothook", "boothook"), (b"#!", "script"))


@dataclass(frozen=True)
class UserDataPart:
    """One part of the user data: a script or a boothook."""

    kind: Kind
    name: str
    body: bytes


@dataclass(frozen=True)
class UserData:
    """Parsed user data: the parts to run, in order, and one line for each part that is not supported."""

    parts: tuple[UserDataPart, ...]
    refused: tuple[str, ...] = ()

    def of(self, kind: Kind) -> tuple[UserDataPart, ...]:
        """Return the parts of this kind."""
        return tuple(part for part in self.parts if part.kind == kind)


def parse(data: bytes) -> UserData:
    """Split user data into parts. Unsupported parts are listed by name, never dropped silently."""
    try:
        data = _unpacked(data)
    except ValueError as err:
        return UserData((), (str(err),))
    if not data.strip():
        return UserData(())
    if _is_mime(data):
        return _from_mime(data)
    return _from_text(data, "part-001", "")


def _is_mime(data: bytes) -> bool:
    head = data[:4096].lower()
    return head.startswith((b"content-type:", b"mime-version:", b"from ")) or b"\ncontent-type: multipart/" in head


def _from_mime(data: bytes) -> UserData:
    try:
        message = email.message_from_bytes(data, policy=email.policy.default)
        leaves = [part for part in message.walk() if not part.is_multipart()]
    except RecursionError:
        return UserData((), ("the MIME parts are nested too deeply",))
    parts: list[UserDataPart] = []
    refused: list[str] = []
    left = _LIMIT_BYTES
    for number, leaf in enumerate(leaves, start=1):
        body = leaf.get_payload(decode=True)
        name = leaf.get_filename() or f"part-{number:03d}"
        parsed = _from_text(body if isinstance(body, bytes) else b"", name, leaf.get_content_type(), left)
        left -= sum(len(part.body) for part in parsed.parts)
        parts += parsed.parts
        refused += parsed.refused
    return UserData(tuple(parts), tuple(refused))


def _from_text(body: bytes, name: str, content_type: str, limit: int = _LIMIT_BYTES) -> UserData:
    try:
        body = _unpacked(body, limit)
    except ValueError as err:
        return UserData((), (f"{name}: {err}",))
    kind = _TYPES.get(content_type)
    if kind is None:
        kind = next((kind for mark, kind in _MARKS if body.startswith(mark)), None)
    if kind is None:
        return UserData((), (f"{name}: {_description(body, content_type)} is not simulated and was ignored",))
    # cloud-init removes its own marker line from a boot hook, so that a `#!` line may follow.
    if kind == "boothook" and body.startswith(b"#cloud-boothook"):
        body = body.partition(b"\n")[2]
    return UserData((UserDataPart(kind, _plain_name(name), body),))


def _description(body: bytes, content_type: str) -> str:
    first = body.split(b"\n", 1)[0][:40].decode(errors="replace")
    if first.startswith("#cloud-config") or content_type == "text/cloud-config":
        return "cloud-config"
    return f"user data of type {content_type}" if content_type else f"user data that begins with {first!r}"


def _plain_name(name: str) -> str:
    """Return a safe file name for an untrusted part name."""
    kept = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
    return kept.lstrip(".")[:100] or "part"


def _unpacked(data: bytes, limit: int = _LIMIT_BYTES) -> bytes:
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        unpacker = zlib.decompressobj(wbits=31)
        unpacked = unpacker.decompress(data, max(1, limit))  # 0 would mean no limit
    except zlib.error as err:
        message = f"damaged gzip data: {err}"
        raise ValueError(message) from err
    if unpacker.unconsumed_tail:
        message = f"the unpacked gzip data exceeds {_LIMIT_BYTES >> 20} MiB in total"
        raise ValueError(message)
    return unpacked
