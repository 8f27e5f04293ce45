"""Split user data, as cloud-init does, into parts that run at every boot, parts that run once, and rejected parts.

`tests/system/cloud_init` compares the result with cloud-init itself (22.4, Debian 12), also for malformed user data.
"""

import email
import string
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Final, Literal

_LIMIT_BYTES = 16 * 1024 * 1024
"""Limit for the total size of all unpacked parts, so that a small gzip file cannot exhaust memory."""

Kind = Literal["boothook", "script"]
_TYPES: dict[str, Kind] = {"text/cloud-boothook": "boothook", "text/x-shellscript": "script"}
_HOOK_MARK: Final = "#cloud-boothook"
_MARKS: Final = (
    ("## template: jinja", "text/jinja2"),
    ("#cloud-config-archive", "text/cloud-config-archive"),
    ("#cloud-config-jsonp", "text/cloud-config-jsonp"),
    (_HOOK_MARK, "text/cloud-boothook"),
    ("#cloud-config", "text/cloud-config"),
    ("#include-once", "text/x-include-once-url"),
    ("#part-handler", "text/part-handler"),
    ("#include", "text/x-include-url"),
    ("#!", "text/x-shellscript"),
)
"""First characters of a part, longest first, and the type that they denote. Case does not matter."""
_NOT_MIME: Final = "text/x-not-multipart"
_EXAMINED: Final = ("text/plain", _NOT_MIME, "text/x-shellscript")
"""Declared types that are replaced by the type that the content denotes. Other types are used as declared."""
_GZIP_TYPES: Final = frozenset(
    f"application/{name}"
    for name in ("gzip", "gzip-compressed", "gzipped", "x-compress", "x-compressed", "x-gunzip", "x-gzip")
) | {"application/x-gzip-compressed"}
_NAME_CHARACTERS: Final = frozenset("_-.()" + string.digits + string.ascii_letters)
_HEAD_BYTES: Final = 4096
_NAME_BYTES: Final = 255


@dataclass(frozen=True)
class UserDataPart:
    """One part of the user data: a script or a boot hook."""

    kind: Kind
    name: str
    body: bytes


@dataclass(frozen=True)
class UserData:
    """Parsed user data: the parts in the order given, and one error line for each unsupported or damaged part."""

    parts: tuple[UserDataPart, ...]
    refused: tuple[str, ...] = ()

    def of(self, kind: Kind) -> tuple[UserDataPart, ...]:
        """Return the parts of this kind in the order in which they run.

        Boot hooks run in the order given. Scripts are first written to one directory, where a later script replaces an
        earlier one of the same name, and then run in the order of their names.
        """
        found = [part for part in self.parts if part.kind == kind]
        if kind == "boothook":
            return tuple(found)
        by_name = {part.name: part for part in found}
        return tuple(by_name[name] for name in sorted(by_name))


def parse(data: bytes) -> UserData:
    """Split user data into parts. Unsupported or damaged parts are listed in `refused`, never dropped silently."""
    try:
        data = _unpacked(data)
        leaves = list(_leaves(data))
    except ValueError as err:
        return UserData((), (str(err),))
    except RecursionError:
        return UserData((), ("the MIME parts are nested too deeply",))
    if not data.strip():
        return UserData(())
    parts: list[UserDataPart] = []
    refused: list[str] = []
    for number, (content_type, given_name, payload) in enumerate(leaves, start=1):
        name = given_name or f"part-{number:03d}"
        try:
            parts.append(_part(content_type, name, payload))
        except ValueError as err:
            refused.append(f"{name}: {err}")
    return UserData(tuple(parts), tuple(refused))


def _leaves(data: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Yield the content type, file name and content of each part, unpacked."""
    if b"mime-version:" not in data[:_HEAD_BYTES].lower():
        yield _NOT_MIME, "", data
        return
    try:
        text = data.decode()
    except UnicodeDecodeError as err:
        message = f"the MIME message is not UTF-8, so no part of it is read: {err}"
        raise ValueError(message) from err
    left = _LIMIT_BYTES
    for part in email.message_from_string(text).walk():
        content_type, content = part.get_content_type(), _content(part)
        if part.get_content_maintype().lower() == "multipart":
            continue
        if content_type in _GZIP_TYPES:
            content, content_type = _unpacked(content, left, required=True), "text/plain"
        left -= len(content)
        yield content_type, part.get_filename() or "", content


def _content(part: Message) -> bytes:
    content = part.get_payload(decode=True)
    return content if isinstance(content, bytes) else b""


def _part(content_type: str, name: str, content: bytes) -> UserDataPart:
    """Return a part that runs."""
    text = content.decode("utf-8", "surrogateescape")
    if content_type in _EXAMINED:
        start = text.lstrip().lower()
        content_type = next((found for mark, found in _MARKS if start.startswith(mark)), content_type)
    kind = _TYPES.get(content_type)
    if kind is None:
        message = f"{_description(text, content_type)} is not simulated and was ignored"
        raise ValueError(message)
    text = _unix_lines(text)
    if kind == "boothook":
        # cloud-init removes its own marker from a boot hook, so that a `#!` line can be the first line.
        text = text.removeprefix(_HOOK_MARK).lstrip()
    try:
        return UserDataPart(kind, _plain_name(name), text.encode())
    except UnicodeEncodeError:
        message = "the text is not UTF-8, so it is not run"
        raise ValueError(message) from None


def _unix_lines(text: str) -> str:
    """Replace CR LF by LF in the whole text if its first line ends in CR LF."""
    return text.replace("\r\n", "\n") if text.partition("\n")[0].endswith("\r") else text


def _description(text: str, content_type: str) -> str:
    first = text.split("\n", 1)[0][:40].encode(errors="replace").decode()
    if content_type == "text/cloud-config":
        return "cloud-config"
    return f"user data of type {content_type}" if content_type != _NOT_MIME else f"user data that begins with {first!r}"


def _plain_name(name: str) -> str:
    """Return the name of the file to which cloud-init writes a part."""
    kept = "".join(letter for letter in name.replace("/", "_") if letter in _NAME_CHARACTERS)
    if kept.strip(".") == "" or len(kept) > _NAME_BYTES:
        message = "its name cannot be that of a file"
        raise ValueError(message)
    return kept


def _unpacked(data: bytes, limit: int = _LIMIT_BYTES, *, required: bool = False) -> bytes:
    if not data.startswith(b"\x1f\x8b"):
        if required:
            message = "damaged gzip data: no gzip header"
            raise ValueError(message)
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
    if not unpacker.eof:
        message = "damaged gzip data: it is incomplete"
        raise ValueError(message)
    return unpacked
