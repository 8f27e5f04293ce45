"""Delete a state home's rehearsal cloud, even if its files are damaged."""

import contextlib
import os
import shutil
from datetime import datetime
from typing import Final

from cloudgpu.errors import CloudGpuError, RehearsalError, StateError
from cloudgpu.paths import Home
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.layout import RehearsalFiles, record_ended_instances, running_nodes
from cloudgpu.rehearsal.nodes.host_client import NodeHostClient
from cloudgpu.rehearsal.server import process, sigv4
from cloudgpu.text import command

_EXIT_LIMIT_S: Final = 20.0


def reset(home: Home, at: datetime) -> bool:
    """Stop the server and its nodes, and delete all simulated state. Return True if anything was deleted.

    The access keys are kept: cluster records identify the cloud by its access key ID, and `down` must still be able to
    remove those records. So is the list of the instances that ended, which `status` reads.

    Args:
        home: The state home.
        at: The current time, at which nodes that are still running end.
    """
    files = RehearsalFiles.of(home)
    if not os.path.lexists(files.root):
        return False
    host = NodeHostClient(files.nodes)
    # If the state is damaged, the server that `stop` starts does not know these nodes.
    running = _running(host) if host.running() else []
    with contextlib.suppress(CloudGpuError):
        # Do not call `stop` if a server holds the lock but does not respond, because `stop` would wait until the start
        # deadline.
        if client.find_running(home) is not None or process.running_server_pid(files) is None:
            client.stop(home)
    _kill_server(files)
    running += _stop_nodes(host, files)
    with contextlib.suppress(OSError, CloudGpuError):
        sigv4.repair(files.keys, client.saved_key_id(files))
    try:
        return _delete(files)
    finally:
        record_ended_instances(files, running, at)  # afterwards, because the disk may have been full


def _kill_server(files: RehearsalFiles) -> None:
    pid = process.running_server_pid(files)
    if pid is None or (pid and process.kill_server(pid, _EXIT_LIMIT_S)):
        return
    message = f"the rehearsal server of {files.root} did not exit"
    raise RehearsalError(message, hint=command("fuser", "-k", str(files.server_lock)))


def _stop_nodes(host: NodeHostClient, files: RehearsalFiles) -> list[str]:
    """Stop nodes that outlived the server, and return the IDs of those that were running.

    A node host started here adopts the nodes of a previous node host.
    """
    instances = files.nodes / "instances"
    running = _running(host) if instances.is_dir() and any(instances.iterdir()) else []
    host.shutdown()
    return running


def _running(host: NodeHostClient) -> list[str]:
    with contextlib.suppress(CloudGpuError):
        return running_nodes(host.list())
    return []


def _delete(files: RehearsalFiles) -> bool:
    try:
        if files.root.is_symlink() or not files.root.is_dir():
            files.root.unlink()
            return True
        kept = {files.keys, *([files.ended_instances] if files.ended_instances.is_file() else [])}
        paths = [path for path in files.root.iterdir() if path not in kept]
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as err:
        message = f"cannot delete {files.root}: {err.strerror}"
        raise StateError(message, hint=command("rm", "-r", str(files.root))) from err
    return bool(paths)
