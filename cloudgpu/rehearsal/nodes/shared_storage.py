"""The directories that back file systems, volumes and buckets, and their mounts on the nodes.

The superuser of a node is not permitted to mount. For a bucket with a local endpoint, the host therefore starts the
machine's s3fs in the node's namespaces, with the credentials of the node's role.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.rehearsal.nodes import shared_folders
from cloudgpu.rehearsal.nodes.processes import NodeRuntime
from cloudgpu.rehearsal.nodes.servers.command_answers import Reply
from cloudgpu.rehearsal.nodes.shared_folders import Mounted
from cloudgpu.rehearsal.nodes.values import RoleCredentials

FOLDER = "shared"
"""Path of the shared directory, relative to the node host's directory."""
READ_ONLY = "shared.ro"
"""Path at which nodes with namespaces see the same files read-only, relative to the node host's directory."""
_FORMATTED = ".formatted"
_OPEN = 0o777
_FAILED = 32
_TIMEOUT_S = 60.0
_CACHE = "/tmp"  # noqa: S108 - in the node
_OPTIONS = "allow_other,use_path_request_style,endpoint=us-east-1"


class SharedFolderStore:
    """The shared directories of one rehearsal cloud."""

    def __init__(self, directory: Path) -> None:
        """Create the store without creating directories.

        Args:
            directory: Directory of the node host.
        """
        self._folder = directory / FOLDER
        self._read_only = directory / READ_ONLY

    def formatted(self) -> frozenset[str]:
        """Return the names of the directories that back formatted volumes."""
        marks = self._folder / _FORMATTED
        return frozenset(path.name for path in marks.iterdir()) if marks.is_dir() else frozenset()

    def format(self, folder: str) -> None:
        """Record that a volume is formatted."""
        (self._folder / _FORMATTED).mkdir(parents=True, exist_ok=True)
        (self._folder / _FORMATTED / folder).touch()

    def path(self, mounted: Mounted) -> str:
        """Return the path of the directory that backs a mount, and create the directory if it does not exist."""
        folder = self._folder / mounted.folder
        if not folder.is_dir():
            folder.mkdir(parents=True)
            folder.chmod(_OPEN)
        return str((self._read_only if mounted.read_only else self._folder) / mounted.folder)


def create_shared_folder(directory: Path) -> tuple[Path, Path]:
    """Create the shared directory. Return its path and the path of its read-only view."""
    folder, read_only = directory / FOLDER, directory / READ_ONLY
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not read_only.is_symlink():
        # Only nodes without namespaces follow this symlink. For them, the view is not actually read-only.
        read_only.symlink_to(FOLDER)
    return folder, read_only


def delete_orphaned_folders(directory: Path, existing: frozenset[str]) -> None:
    """Delete the backing directories of storage resources that no longer exist."""
    folder = directory / FOLDER
    for parent in (folder, folder / _FORMATTED):
        for path in parent.iterdir() if parent.is_dir() else ():
            if path.name != _FORMATTED and path.name not in existing:
                _delete(path)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Views:
    """The mounts of one node. `run` is a function that executes a command as the node's superuser."""

    body: NodeRuntime
    shared: SharedFolderStore
    run: Callable[[list[str]], Awaitable[int]]
    credentials: Callable[[], RoleCredentials | None]

    async def settle(self, program: str, reply: Reply) -> Reply | None:
        """Carry out the mount or unmount in a simulated command's reply, if any. Return an error reply, or None."""
        mounted = reply.mounted or reply.unmounted
        if mounted is None:
            return None
        error = await (self.show(mounted) if reply.mounted else self.hide(mounted))
        return Reply(stderr=f"{program}: {mounted.target}: {error}\n", exit_code=_FAILED) if error else None

    async def show(self, mounted: Mounted) -> str:
        """Mount a source. Return the error, or an empty string."""
        if mounted.service:
            return await self._bucket(mounted)
        status = await self.run([*shared_folders.LINK_COMMAND, mounted.target, self.shared.path(mounted)])
        return "simulated: cannot link the mount point; see the node's console output" if status else ""

    async def hide(self, mounted: Mounted) -> str:
        """Unmount a source. Return the error, or an empty string."""
        if mounted.service:
            return await self._outside("umount", [mounted.target], {})
        status = await self.run([*shared_folders.UNLINK_COMMAND, mounted.target])
        return "simulated: cannot unlink the mount point; see the node's console output" if status else ""

    async def _bucket(self, mounted: Mounted) -> str:
        keys = self.credentials()
        if keys is None:
            return "simulated: the node has no role, or no credentials for it yet, so the bucket cannot be mounted"
        options = f"{_OPTIONS},url={mounted.service},umask={'0222,ro' if mounted.read_only else '0000'}"
        environment = {
            "AWSACCESSKEYID": keys.access_key_id,
            "AWSSECRETACCESSKEY": keys.secret_access_key,
            "AWSSESSIONTOKEN": keys.session_token,
            "HOME": _CACHE,
        }
        return await self._outside("s3fs", [mounted.bucket, mounted.target, "-o", options], environment)

    async def _outside(self, program: str, arguments: Sequence[str], environment: dict[str, str]) -> str:
        """Run one of the machine's programs in the node's namespaces, with privileges that the node does not have."""
        enter = self.body.entering()
        real = shutil.which(program, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        if not enter:
            return "simulated: nodes without namespaces cannot mount buckets; use `mode: copy`"
        if real is None or not Path("/dev/fuse").exists():
            return f"simulated: this machine has no {program} or no /dev/fuse; install s3fs, or use `mode: copy`"
        # Inside the node, the same path may lead to another program, so execute the open file.
        handle = os.open(real, os.O_RDONLY)
        try:
            with tempfile.TemporaryFile() as output:
                command = [*enter, f"/proc/self/fd/{handle}", *arguments]
                return await _run(command, {"PATH": "/usr/bin:/bin", **environment}, handle, output.fileno())
        finally:
            os.close(handle)


async def _run(command: list[str], environment: dict[str, str], handle: int, output: int) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, pass_fds=(handle,), start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
    )  # fmt: skip
    try:
        code = await asyncio.wait_for(process.wait(), _TIMEOUT_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return f"no response within {_TIMEOUT_S:.0f} s"
    text = os.pread(output, 1000, 0).decode(errors="replace").strip()
    return "" if code == 0 else text or f"exited with status {code}"
