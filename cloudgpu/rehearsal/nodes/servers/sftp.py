"""An SFTP server (protocol version 3) on standard input and output, so that a node works without OpenSSH.

Run as `python3 -I -S sftp.py`. The server exposes every file that its process can access, and does not translate paths.
"""

import contextlib
import errno
import os
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

(_INIT, _VERSION, _OPEN, _CLOSE, _READ, _WRITE, _LSTAT, _FSTAT, _SETSTAT, _FSETSTAT, _OPENDIR) = range(1, 12)
(_READDIR, _REMOVE, _MKDIR, _RMDIR, _REALPATH, _STAT, _RENAME, _READLINK, _SYMLINK) = range(12, 21)
(_STATUS, _HANDLE, _DATA, _NAME, _ATTRS, _EXTENDED) = (101, 102, 103, 104, 105, 200)
(_OK, _EOF, _NO_SUCH_FILE, _PERMISSION_DENIED, _FAILURE, _BAD_MESSAGE, _UNSUPPORTED) = (0, 1, 2, 3, 4, 5, 8)
(_HAS_SIZE, _HAS_IDS, _HAS_MODE, _HAS_TIMES, _HAS_EXTENSIONS) = (1, 2, 4, 8, 0x80000000)
(_READS, _WRITES, _APPENDS, _CREATES, _TRUNCATES, _EXCLUDES) = (1, 2, 4, 8, 16, 32)
_PACKET_LIMIT_BYTES = 4 * 1024 * 1024
_READ_LIMIT_BYTES = 256 * 1024
_SHORTEST_REQUEST_BYTES = 5
_NAMES_PER_RESPONSE = 100
_LONG_AGO_S = 180 * 86400
_EXTENSIONS = (b"posix-rename@openssh.com", b"hardlink@openssh.com", b"fsync@openssh.com")
_STATUS_BY_ERRNO = {
    errno.ENOENT: _NO_SUCH_FILE,
    errno.ENOTDIR: _NO_SUCH_FILE,
    errno.ELOOP: _NO_SUCH_FILE,
    errno.EACCES: _PERMISSION_DENIED,
    errno.EPERM: _PERMISSION_DENIED,
    errno.EROFS: _PERMISSION_DENIED,
}


class _BadMessageError(ValueError):
    """The peer sent a malformed SFTP packet."""


class _Packet:
    """The body of a request, read from front to back."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def take(self, size: int) -> bytes:
        taken = self._body[self._at : self._at + size]
        if len(taken) != size:
            raise _BadMessageError("the packet is incomplete")
        self._at += size
        return taken

    def u32(self) -> int:
        return int(struct.unpack(">I", self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack(">Q", self.take(8))[0])

    def text(self) -> bytes:
        return self.take(self.u32())

    def attributes(self) -> dict[str, tuple[int, ...]]:
        flags = self.u32()
        attributes: dict[str, tuple[int, ...]] = {}
        if flags & _HAS_SIZE:
            attributes["size"] = (self.u64(),)
        if flags & _HAS_IDS:
            attributes["ids"] = (self.u32(), self.u32())
        if flags & _HAS_MODE:
            attributes["mode"] = (self.u32(),)
        if flags & _HAS_TIMES:
            attributes["times"] = (self.u32(), self.u32())
        if flags & _HAS_EXTENSIONS:
            for _ in range(self.u32()):
                self.text(), self.text()
        return attributes


def _string(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def _attributes(info: os.stat_result) -> bytes:
    flags = _HAS_SIZE | _HAS_IDS | _HAS_MODE | _HAS_TIMES
    times = (int(info.st_atime) & 0xFFFFFFFF, int(info.st_mtime) & 0xFFFFFFFF)
    return struct.pack(">IQIIIII", flags, info.st_size, info.st_uid, info.st_gid, info.st_mode, *times)


def _long_name(name: bytes, info: os.stat_result) -> bytes:
    age = time.time() - info.st_mtime
    shape = "%b %e %H:%M" if 0 <= age < _LONG_AGO_S else "%b %e  %Y"
    when = time.strftime(shape, time.localtime(info.st_mtime))
    line = f"{stat.filemode(info.st_mode)} {info.st_nlink:4d} {info.st_uid:<8d} {info.st_gid:<8d} "
    return f"{line}{info.st_size:8d} {when} ".encode() + name


class Server:
    """An SFTP server for one connection."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        """Create the server without reading.

        Args:
            source: Stream of requests.
            sink: Stream of responses.
        """
        self._source = source
        self._sink = sink
        self._files: dict[bytes, int] = {}
        self._folders: dict[bytes, Iterator[os.DirEntry[bytes]]] = {}
        self._handles = 0
        self._answers: dict[int, Callable[[_Packet], bytes]] = {
            _OPEN: self._open,
            _CLOSE: self._close,
            _READ: self._read,
            _WRITE: self._write,
            _LSTAT: lambda packet: self._described(os.lstat(packet.text() or b".")),
            _STAT: lambda packet: self._described(os.stat(packet.text() or b".")),  # noqa: PTH116 - bytes, no Path
            _FSTAT: lambda packet: self._described(os.fstat(self._file(packet))),
            _SETSTAT: lambda packet: self._change(packet.text(), packet.attributes()),
            _FSETSTAT: lambda packet: self._change(self._file(packet), packet.attributes()),
            _OPENDIR: self._open_folder,
            _READDIR: self._read_folder,
            _REMOVE: lambda packet: self._act(os.remove, packet.text()),
            _MKDIR: self._make_folder,
            _RMDIR: lambda packet: self._act(os.rmdir, packet.text()),
            _REALPATH: self._real_path,
            _RENAME: self._rename,
            _READLINK: lambda packet: self._names([(os.readlink(packet.text()), None)]),  # noqa: PTH115 - bytes, no Path
            _SYMLINK: lambda packet: self._act(os.symlink, packet.text(), packet.text()),
            _EXTENDED: self._extended,
        }

    def serve(self) -> None:
        """Process requests until the peer disconnects, or sends a packet of invalid size or without a request ID."""
        while (packet := self._receive()) is not None:
            kind, body = packet[0], _Packet(packet[1:])
            if kind == _INIT:
                pairs = b"".join(_string(name) + _string(b"1") for name in _EXTENSIONS)
                self._send(_VERSION, struct.pack(">I", 3) + pairs)
                continue
            if len(packet) < _SHORTEST_REQUEST_BYTES:
                return
            number = body.take(4)
            answer = self._answer(kind, body)
            self._send(answer[0], number + answer[1:])

    def _answer(self, kind: int, body: _Packet) -> bytes:
        handler = self._answers.get(kind)
        if handler is None:
            return self._status(_UNSUPPORTED, "this request is not supported")
        try:
            return handler(body)
        except OSError as err:
            code = _STATUS_BY_ERRNO.get(err.errno or 0, _FAILURE)
            return self._status(code, err.strerror or str(err))
        except ValueError as err:
            return self._status(_BAD_MESSAGE, str(err))

    def _receive(self) -> bytes | None:
        header = self._source.read(4)
        if len(header) < 4:  # noqa: PLR2004 - the size of a length
            return None
        size = struct.unpack(">I", header)[0]
        if not 1 <= size <= _PACKET_LIMIT_BYTES:
            return None
        packet = self._source.read(size)
        return packet if len(packet) == size else None

    def _send(self, kind: int, body: bytes) -> None:
        self._sink.write(struct.pack(">IB", len(body) + 1, kind) + body)
        self._sink.flush()

    @staticmethod
    def _status(code: int, message: str) -> bytes:
        return bytes([_STATUS]) + struct.pack(">I", code) + _string(message.encode()) + _string(b"en")

    def _done(self) -> bytes:
        return self._status(_OK, "ok")

    def _act(self, action: Callable[..., None], *arguments: bytes | int) -> bytes:
        action(*arguments)
        return self._done()

    @staticmethod
    def _described(info: os.stat_result) -> bytes:
        return bytes([_ATTRS]) + _attributes(info)

    @staticmethod
    def _names(entries: list[tuple[bytes, os.stat_result | None]]) -> bytes:
        parts = [bytes([_NAME]), struct.pack(">I", len(entries))]
        for name, info in entries:
            parts.append(_string(name))
            parts.append(_string(_long_name(name, info) if info else name))
            parts.append(_attributes(info) if info else struct.pack(">I", 0))
        return b"".join(parts)

    def _new_handle(self) -> bytes:
        self._handles += 1
        return str(self._handles).encode()

    def _file(self, packet: _Packet) -> int:
        handle = packet.text()
        if handle not in self._files:
            raise _BadMessageError("no such handle")
        return self._files[handle]

    def _open(self, packet: _Packet) -> bytes:
        path, bits = packet.text(), packet.u32()
        mode = packet.attributes().get("mode", (0o666,))[0]
        flags = os.O_RDWR if bits & _READS and bits & _WRITES else os.O_WRONLY if bits & _WRITES else os.O_RDONLY
        for bit, flag in (
            (_APPENDS, os.O_APPEND),
            (_CREATES, os.O_CREAT),
            (_TRUNCATES, os.O_TRUNC),
            (_EXCLUDES, os.O_EXCL),
        ):
            flags |= flag if bits & bit else 0
        handle = self._new_handle()
        self._files[handle] = os.open(path, flags, mode & 0o7777)
        return bytes([_HANDLE]) + _string(handle)

    def _close(self, packet: _Packet) -> bytes:
        handle = packet.text()
        if handle in self._files:
            os.close(self._files.pop(handle))
        elif handle in self._folders:
            del self._folders[handle]
        else:
            raise _BadMessageError("no such handle")
        return self._done()

    def _read(self, packet: _Packet) -> bytes:
        file, offset, size = self._file(packet), packet.u64(), packet.u32()
        data = os.pread(file, min(size, _READ_LIMIT_BYTES), offset)
        if not data and size:
            return self._status(_EOF, "end of file")
        return bytes([_DATA]) + _string(data)

    def _write(self, packet: _Packet) -> bytes:
        file, offset, data = self._file(packet), packet.u64(), memoryview(packet.text())
        while data:
            written = os.pwrite(file, data, offset)
            data, offset = data[written:], offset + written
        return self._done()

    def _change(self, target: bytes | int, attributes: dict[str, tuple[int, ...]]) -> bytes:
        if "size" in attributes:
            os.truncate(target, attributes["size"][0])
        if "ids" in attributes:
            os.chown(target, *attributes["ids"])
        if "mode" in attributes:
            os.chmod(target, stat.S_IMODE(attributes["mode"][0]))  # noqa: PTH101 - a descriptor or bytes, no Path
        if "times" in attributes:
            accessed, modified = attributes["times"]
            os.utime(target, (accessed, modified))
        return self._done()

    def _open_folder(self, packet: _Packet) -> bytes:
        entries = os.scandir(packet.text() or b".")
        handle = self._new_handle()
        self._folders[handle] = entries
        return bytes([_HANDLE]) + _string(handle)

    def _read_folder(self, packet: _Packet) -> bytes:
        handle = packet.text()
        if handle not in self._folders:
            raise _BadMessageError("no such handle")
        entries: list[tuple[bytes, os.stat_result | None]] = []
        for entry in self._folders[handle]:
            # Ignore a file that is deleted while its directory is listed.
            with contextlib.suppress(FileNotFoundError):
                entries.append((entry.name, entry.stat(follow_symlinks=False)))
            if len(entries) == _NAMES_PER_RESPONSE:
                break
        return self._names(entries) if entries else self._status(_EOF, "no more names")

    def _make_folder(self, packet: _Packet) -> bytes:
        path = packet.text()
        os.mkdir(path, packet.attributes().get("mode", (0o777,))[0] & 0o7777)  # noqa: PTH102 - bytes, no Path
        return self._done()

    def _real_path(self, packet: _Packet) -> bytes:
        return self._names([(os.path.realpath(packet.text() or b"."), None)])

    def _rename(self, packet: _Packet) -> bytes:
        old, new = packet.text(), packet.text()
        # In protocol version 3, a rename must not replace an existing file; the `posix-rename` extension may.
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, "the destination already exists")
        return self._act(os.rename, old, new)

    def _extended(self, packet: _Packet) -> bytes:
        name = packet.text()
        if name == b"posix-rename@openssh.com":
            return self._act(os.replace, packet.text(), packet.text())
        if name == b"hardlink@openssh.com":
            return self._act(os.link, packet.text(), packet.text())
        if name == b"fsync@openssh.com":
            return self._act(os.fsync, self._file(packet))
        return self._status(_UNSUPPORTED, "this extension is not supported")


if __name__ == "__main__":
    Server(sys.stdin.buffer, sys.stdout.buffer).serve()
