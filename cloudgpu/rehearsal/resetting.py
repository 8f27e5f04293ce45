"""Delete a home's rehearsal cloud, whatever state its files are in."""

import contextlib
import os
import shutil
from typing import Final

from cloudgpu.errors import CloudGpuError, RehearsalError, StateError
from cloudgpu.paths import Home
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.nodes.host_client import NodeHostClient
from cloudgpu.rehearsal.server import access_keys, process
from cloudgpu.text import command

_END_LIMIT_S: Final = 20.0


def reset(home: Home) -> bool:
    """End the server and its nodes, and delete everything simulated; returns whether there was anything.

    The keys stay: their id names the cloud in the records of clusters, which `down` clears afterwards.

    Raises:
        RehearsalError: A process does not end.
        StateError: The files cannot be deleted.
    """
    files = RehearsalFiles.of(home)
    if not os.path.lexists(files.root):
        return False
    # A server that holds its lock and does not answer would keep `stop` waiting for the whole of its start.
    if client.running(home) is not None or process.holder(files) is None:
        with contextlib.suppress(CloudGpuError):
            client.stop(home)
    _end_server(files)
    _end_nodes(files)
    with contextlib.suppress(OSError, CloudGpuError):
        access_keys.repair(files.keys, client.known_id(files))
    return _delete(files)


def _end_server(files: RehearsalFiles) -> None:
    pid = process.holder(files)
    if pid is None or (pid and process.end(pid, _END_LIMIT_S)):
        return
    message = f"the rehearsal server of {files.root} does not end"
    raise RehearsalError(message, hint=command("fuser", "-k", str(files.server_lock)))


def _end_nodes(files: RehearsalFiles) -> None:
    """End what runs on without a server; a host that is started for it takes over what an earlier one left."""
    host = NodeHostClient(files.nodes)
    instances = files.nodes / "instances"
    if instances.is_dir() and any(instances.iterdir()):
        with contextlib.suppress(CloudGpuError):
            host.list()
    host.shutdown()


def _delete(files: RehearsalFiles) -> bool:
    try:
        if files.root.is_symlink() or not files.root.is_dir():
            files.root.unlink()
            return True
        found = [path for path in files.root.iterdir() if path != files.keys]
        for path in found:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as err:
        message = f"cannot delete {files.root}: {err.strerror}"
        raise StateError(message, hint=command("rm", "-r", str(files.root))) from err
    return bool(found)
