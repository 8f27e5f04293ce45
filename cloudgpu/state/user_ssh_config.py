"""Manage cloudgpu's files in the user's `~/.ssh`: one per cluster, recorded so that `down` removes it.

Everything else is preserved byte for byte, including permissions.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from cloudgpu import files
from cloudgpu.errors import CloudGpuError, NewerFormatError, StateError
from cloudgpu.paths import Home
from cloudgpu.ssh.openssh import include_line
from cloudgpu.state.documents import StateFile
from cloudgpu.text import command

_LINE = "# clusters of cloudgpu; removed with the last of them"
_OWNER = " of "


@dataclass(frozen=True)
class SshFolder:
    """The user's OpenSSH configuration directory; `root` is `~/.ssh`."""

    root: Path

    @property
    def config(self) -> Path:
        """Path of the user's own configuration file."""
        return self.root / "config"

    @property
    def ours(self) -> Path:
        """Path of the directory with cloudgpu's files."""
        return self.root / "cloudgpu.d"

    @property
    def include_lines(self) -> str:
        """Lines to insert at the top of the user's configuration file, where no `Host` block applies to them."""
        return f"{_LINE}\n{include_line(self.ours / '*')}\n\n"

    def owner(self, cluster: str) -> str:
        """Return the path of the state home that wrote a cluster's file; empty if the file cannot be read."""
        try:
            first = files.read_text(self.ours / cluster, files.SETTINGS_BYTES).partition("\n")[0]
        except OSError:
            return ""
        return first.partition(_OWNER)[2]

    def require_usable(self, cluster: str, home: Path) -> None:
        """Reject a cluster whose file would overwrite the file of a cluster in another state home."""
        owner = self.owner(cluster)
        if owner and owner != str(home):
            other = f"a different cluster, also named {cluster}, in the state home {owner}"
            message = f"{self.ours / cluster} belongs to {other}"
            remove = command("cloudgpu", "ssh-config", cluster, "--remove", CLOUDGPU_HOME=owner)
            raise StateError(message, hint=remove)

    def write(self, cluster: str, text: str) -> bool:
        """Write a cluster's file.

        Return True if the `Include` line had to be added to the user's configuration file.
        """
        with self._locked():
            _replace(self.ours / cluster, text, 0o600)
            previous = self._read()
            if self.include_lines in previous or include_line(self.ours / "*") in previous.splitlines():
                return False
            self._write(self.include_lines + previous)
            return True

    def remove(self, cluster: str) -> None:
        """Remove a cluster's file and, if it was the last one, the `Include` line. Idempotent."""
        if not self.ours.is_dir():
            return
        with self._locked():
            try:
                (self.ours / cluster).unlink(missing_ok=True)
            except OSError as err:
                raise _unwritable(self.ours / cluster, err) from err
            if any(not path.name.startswith(".") for path in self.ours.iterdir()):
                return
            previous = self._read()
            if self.include_lines in previous:
                self._write(previous.replace(self.include_lines, "", 1))
            with contextlib.suppress(OSError):
                (self.ours / ".lock").unlink(missing_ok=True)
                self.ours.rmdir()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Allow one process at a time to read, change and replace the configuration."""
        lock = self.ours / ".lock"  # `Include` ignores files that begin with a dot
        while True:
            with self._opened(lock) as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                # Retry if another process deleted the lock file, as it does when it removes the last cluster.
                if lock.exists() and lock.stat().st_ino == os.fstat(held.fileno()).st_ino:
                    yield
                    return

    def _opened(self, lock: Path) -> BinaryIO:
        try:
            files.make_private_directory(self.root)
            self.ours.mkdir(mode=0o700, exist_ok=True)
            return files.open_for_appending(lock)
        except OSError as err:
            raise _unwritable(lock, err) from err

    def _read(self) -> str:
        try:
            # Bytes that are not UTF-8 are written back unchanged.
            return files.read_bytes(self.config, files.SETTINGS_BYTES).decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            return ""
        except OSError as err:
            raise _unwritable(self.config, err) from err

    def _write(self, text: str) -> None:
        # If the configuration is a symbolic link, for example into a dotfiles repository, replace the target instead.
        path = self.config.resolve()
        if not text:
            # cloudgpu created the file, or it was empty before: delete it, or empty the target of a symbolic link.
            path.unlink(missing_ok=True) if not self.config.is_symlink() else files.write_for_user(path, b"")
            return
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        if path.exists() and not os.access(path, os.W_OK):
            message = f"{self.config} is not writable"
            raise StateError(message, hint=f"add this line at the top of the file: {include_line(self.ours / '*')}")
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
    hint = "print the entries with `cloudgpu ssh-config NAME --print` and add them to your ssh configuration"
    return StateError(f"{path} cannot be written: {err.strerror}", hint=hint)


@dataclass(frozen=True)
class _SshConfigRecord:
    """The content of the file."""

    folder: str


SSH_CONFIG: Final = StateFile("record of ssh entries", _SshConfigRecord)


def record_folder(home: Home, cluster: str, folder: SshFolder) -> None:
    """Record the directory to which a cluster's OpenSSH entries are written."""
    SSH_CONFIG.write(home.cluster(cluster).ssh_config, _SshConfigRecord(str(folder.root)))


def remove_entries(home: Home, cluster: str) -> list[str]:
    """Remove the OpenSSH entries of a cluster that is being deleted.

    Return a description of each problem. No problem raises an error, because leftover entries cost nothing.
    """
    path = home.cluster(cluster).ssh_config
    try:
        folder = SshFolder(Path(SSH_CONFIG.read(path).folder))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, NewerFormatError) as err:
        return [f"{path} cannot be read ({err}): entries of cluster {cluster} may be left in ~/.ssh/cloudgpu.d"]
    try:
        if folder.owner(cluster) == str(home.root):
            folder.remove(cluster)
        path.unlink(missing_ok=True)
    except (CloudGpuError, OSError) as err:
        return [f"the ssh entries of cluster {cluster} could not be removed: {err}"]
    return []
