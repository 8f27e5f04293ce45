"""Boot a simulated node as cloud-init does: split the user data into parts, run the steps, record their progress.

`tests/system/cloud_init` compares the parts and the order with cloud-init itself (22.4, Debian 12), also for malformed
user data.
"""

import asyncio
import email
import string
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path
from typing import Final, Literal

import asyncssh

from cloudgpu.rehearsal.nodes import processes
from cloudgpu.rehearsal.nodes.processes import NodeRuntime
from cloudgpu.rehearsal.nodes.record import Console, StoredRecord
from cloudgpu.rehearsal.nodes.servers.metadata import hostname

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
_VERSION = "24.1.3-rehearsal"
_FOLDERS: dict[Kind, str] = {"boothook": "boothooks", "script": "scripts"}
_PER_BOOT = 'failed=0; for script in "$1"/*; do if [ -x "$script" ]; then "$script" || failed=1; fi; done; exit $failed'
_WRITE_AND_RUN = 'mkdir -p "$1" && cat > "$1/$2" && chmod 700 "$1/$2" && cd / && exec "$1/$2"'


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


@dataclass(frozen=True)
class HostKeyText:
    """A node's host key as cloud-init prints it. `public` is the public key line without a comment."""

    fingerprint: str
    public: str

    @classmethod
    def read(cls, path: Path) -> "HostKeyText":
        """Return the fingerprint and public key for the private key in a file."""
        key = asyncssh.read_private_key(path)
        return cls(key.get_fingerprint(), " ".join(key.export_public_key().decode().split()[:2]))


class CloudInit:
    """The cloud-init run during one boot of a node."""

    def __init__(self, body: NodeRuntime, console: Console, data: UserData, environment: Mapping[str, str]) -> None:
        """Create the run without starting anything.

        Args:
            body: Runtime that executes the parts of the user data.
            console: Console that receives the output.
            data: The parsed user data.
            environment: Environment variables for each part.
        """
        self._body = body
        self._console = console
        self._data = data
        self._environment = environment
        self._began_s = time.monotonic()
        self.failed = bool(data.refused)

    async def run_boot_hooks(self, hostname: str, key: HostKeyText) -> None:
        """Run the boot hooks, before users can log in."""
        self._write(f"Cloud-init v. {_VERSION} running 'init' at {_now():%a, %d %b %Y %H:%M:%S} +0000. (simulated)")
        for line in self._data.refused:
            self._write(f"ERROR: {line}")
        for part in self._data.of("boothook"):
            await self._run(part)
        self._console.write(f"Generating public/private ed25519 key pair.\nThe key fingerprint is:\n{key.fingerprint} ")
        self._console.write(f"root@{hostname}\n")

    async def run_per_boot_scripts(self) -> None:
        """Run all executables in `/var/lib/cloud/scripts/per-boot`. Users can already log in."""
        folder = f"{self._body.layer.shown}/var/lib/cloud/scripts/per-boot"
        code = await self._execute(["/bin/sh", "-c", _PER_BOOT, "cloud-init", folder], b"")
        if code:
            self.failed = True
            self._write(f"WARNING: per-boot scripts exited with status {code}")

    async def scripts(self) -> None:
        """Run the user data's scripts. Call this only at the node's first boot. Users can already log in."""
        self._write(f"Cloud-init v. {_VERSION} running 'modules:final' at {_now():%a, %d %b %Y %H:%M:%S} +0000.")
        for part in self._data.of("script"):
            await self._run(part)

    def print_final_messages(self, hostname: str, key: HostKeyText) -> None:
        """Print the host key, which clients read from the console, and the final message of the boot."""
        stamp = f"<14>{_now():%b %e %H:%M:%S} ec2: "
        bar = "#" * 61
        framed = [
            "",
            bar,
            "-----BEGIN SSH HOST KEY FINGERPRINTS-----",
            f"256 {key.fingerprint} root@{hostname} (ED25519)",
            "-----END SSH HOST KEY FINGERPRINTS-----",
            bar,
        ]
        lines = [f"{stamp}{line}" for line in framed]
        lines += [
            "-----BEGIN SSH HOST KEY KEYS-----",
            f"{key.public} root@{hostname}",
            "-----END SSH HOST KEY KEYS-----",
        ]
        self._console.write("".join(f"{line}\n" for line in lines))
        up_s = time.monotonic() - self._began_s
        finished = (
            f"finished at {_now():%a, %d %b %Y %H:%M:%S} +0000. Datasource DataSourceEc2Local.  Up {up_s:.2f} seconds"
        )
        self._write(f"Cloud-init v. {_VERSION} {finished}")

    async def _run(self, part: UserDataPart) -> None:
        folder = f"{self._body.layer.shown}/var/lib/cloud/instance/{_FOLDERS[part.kind]}"
        argv = ["/bin/sh", "-c", _WRITE_AND_RUN, "cloud-init", folder, part.name]
        code = await self._execute(argv, part.body)
        if code:
            self.failed = True
            self._write(f"WARNING: {part.kind} {part.name} exited with status {code}")

    async def _execute(self, argv: list[str], stdin: bytes) -> int:
        return await processes.run(self._body, self._console, argv, self._environment, stdin)

    def _write(self, text: str) -> None:
        up_s = time.monotonic() - self._began_s
        self._console.write(f"[{up_s:12.6f}] cloud-init[1]: {text}\n")


def _now() -> datetime:
    return datetime.now(UTC)


class NodeBoot:
    """The current boot of one node.

    Attributes:
        running: True while cloud-init is running.
        failed: True if a script or boot hook failed, or user data was rejected, in the last finished boot.
    """

    def __init__(self, body: NodeRuntime, console: Console, stored: StoredRecord, host_key: Path) -> None:
        """Create the boot without starting it.

        Args:
            body: Runtime of the node's processes.
            console: Console of the node.
            stored: Record of the node.
            host_key: File with the private host key, whose fingerprint and public key are printed to the console.
        """
        self.running = False
        self.failed = False
        self._body = body
        self._console = console
        self._stored = stored
        self._host_key = host_key
        self._over = asyncio.Event()

    def begin(self) -> None:
        """Make `wait` block until the next boot is over."""
        self._over.clear()

    def end(self) -> None:
        """Mark the boot as over, because the boot finished or the node was powered off."""
        self._over.set()

    async def wait(self) -> None:
        """Wait until the boot is over."""
        await self._over.wait()

    async def run(self, environment: Mapping[str, str], listen: Callable[[], Awaitable[None]]) -> None:
        """Boot the node.

        Args:
            environment: Environment variables for the user data.
            listen: Function that starts the SSH server; called after the boot hooks, as on AWS.
        """
        self.running = True
        key = HostKeyText.read(self._host_key)
        record = self._stored.current
        name = hostname(record.address)
        own = {"INSTANCE_ID": record.spec.instance_id}
        data = parse(record.spec.user_data)
        cloud_init = CloudInit(self._body, self._console, data, {**environment, **own})
        try:
            await cloud_init.run_boot_hooks(name, key)
            await listen()
            await cloud_init.run_per_boot_scripts()
            if not self._stored.current.scripts_done:
                # Save before running the scripts, as cloud-init does: a reboot during a script must not rerun it.
                self._stored.change(scripts_done=True)
                await cloud_init.scripts()
            cloud_init.print_final_messages(name, key)
        finally:
            self.running = False
        self.failed = cloud_init.failed
        self._stored.change(booted=True)
        self.end()
