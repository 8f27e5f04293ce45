"""Manage the user's `~/.ssh`: one file per cluster in a folder of cloudgpu's, and one line that includes the folder.

Everything else stays unchanged to the byte, including permissions.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cloudgpu import files
from cloudgpu.errors import StateError
from cloudgpu.ssh.openssh_config import included
from cloudgpu.text import command

_LINE = "# clusters of cloudgpu; removed with the last of them"
_OWNER = " of "


@dataclass(frozen=True)
class SshFolder:
    """The user's OpenSSH configuration directory; `root` is `~/.ssh`."""

    root: Path

    @property
    def config(self) -> Path:
        """Path of the user's own configuration."""
        return self.root / "config"

    @property
    def ours(self) -> Path:
        """Path of the folder with cloudgpu's files."""
        return self.root / "cloudgpu.d"

    @property
    def addition(self) -> str:
        """The lines to insert at the top of the user's configuration, where no `Host` block applies to them."""
        return f"{_LINE}\n{included(self.ours / '*')}\n\n"

    def owner(self, cluster: str) -> str:
        """Return the state home whose cluster has a file here; empty if none has."""
        try:
            first = files.read_text(self.ours / cluster, files.SETTINGS_BYTES).partition("\n")[0]
        except OSError:
            return ""
        return first.partition(_OWNER)[2]

    def require_usable(self, cluster: str, home: Path) -> None:
        """Refuse to write over a cluster of another home.

        Raises:
            StateError: It has one of this name.
        """
        there = self.owner(cluster)
        if there and there != str(home):
            message = f"{self.ours / cluster} belongs to another cluster {cluster}, of {there}"
            remove = command("cloudgpu", "ssh-config", cluster, "--remove", CLOUDGPU_HOME=there)
            raise StateError(message, hint=remove)

    def write(self, cluster: str, text: str) -> bool:
        """Write a cluster's file. Return True if the user's configuration had to be changed to include the folder.

        Raises:
            StateError: A file cannot be written.
        """
        with self._alone():
            _replace(self.ours / cluster, text, 0o600)
            had = self._read()
            if self.addition in had or included(self.ours / "*") in had.splitlines():
                return False
            self._write(self.addition + had)
            return True

    def remove(self, cluster: str) -> None:
        """Remove a cluster's file, and our line with the last one; nothing there is well, too.

        Raises:
            StateError: Something cannot be removed.
        """
        if not self.ours.is_dir():
            return
        with self._alone():
            try:
                (self.ours / cluster).unlink(missing_ok=True)
            except OSError as err:
                raise _unwritable(self.ours / cluster, err) from err
            if any(not path.name.startswith(".") for path in self.ours.iterdir()):
                return
            had = self._read()
            if self.addition in had:
                self._write(had.replace(self.addition, "", 1))
            with contextlib.suppress(OSError):
                (self.ours / ".lock").unlink(missing_ok=True)
                self.ours.rmdir()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Allow one process at a time to read, change and replace the configuration."""
        lock = self.ours / ".lock"  # `Include` passes over what begins with a dot
        while True:
            with self._opened(lock) as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                # Whoever removed the last cluster took the lock's file along: what we hold then holds nobody off.
                if lock.exists() and lock.stat().st_ino == os.fstat(held.fileno()).st_ino:
                    yield
                    return

    def _opened(self, lock: Path) -> BinaryIO:
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.ours.mkdir(mode=0o700, exist_ok=True)
            return files.open_for_appending(lock)
        except OSError as err:
            raise _unwritable(lock, err) from err

    def _read(self) -> str:
        try:
            # Bytes that are no UTF-8 come back as they were.
            return files.read_bytes(self.config, files.SETTINGS_BYTES).decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            return ""
        except OSError as err:
            raise _unwritable(self.config, err) from err

    def _write(self, text: str) -> None:
        # Where it is a link into somebody's collection of settings, what it leads to is replaced, not the link.
        path = self.config.resolve()
        if not text:
            # It was made by us, or empty before: an empty one does no harm, and none is what there was.
            path.unlink(missing_ok=True) if not self.config.is_symlink() else files.write_for_user(path, b"")
            return
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        if path.exists() and not os.access(path, os.W_OK):
            message = f"{self.config} may not be written"
            raise StateError(message, hint=f"add this line at its top yourself: {included(self.ours / '*')}")
        _replace(path, text, mode)


def _replace(path: Path, text: str, mode: int) -> None:
    """Replace a file atomically."""
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as out:
            out.write(text.encode("utf-8", "surrogateescape"))
            os.fchmod(out.fileno(), mode)
        Path(temporary).replace(path)
    except OSError as err:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise _unwritable(path, err) from err


def _unwritable(path: Path, err: OSError) -> StateError:
    hint = "`cloudgpu ssh-config NAME --print` prints the entries for a file of your own"
    return StateError(f"{path} cannot be written: {err.strerror}", hint=hint)
