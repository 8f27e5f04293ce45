"""The nodes of the example backend: directories, each with a keeper process that kills the node's processes at expiry.

A real backend calls the API of its cloud or scheduler instead.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Final

from cloudgpu import files
from cloudgpu.backends.billing.cluster_billing import name_in_use_error
from cloudgpu.errors import LaunchError, TeardownError
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.documents import write_durably

_KEEPER_S: Final = 10.0
_KEEPER: Final = """
import fcntl, json, os, pathlib, signal, sys, time
node, action = pathlib.Path(sys.argv[1]), sys.argv[2]
lock = open(node / "keeper", "a")  # the node is running as long as this lock is held
fcntl.flock(lock, fcntl.LOCK_EX)
if action == "start" and (pid := os.fork()):
    (node / "pid").write_text(str(pid))
    os._exit(0)
def expiry():
    try:
        return json.loads((node / "tag.json").read_text())["expires_epoch_s"]
    except OSError:
        return 0  # the tag was removed: the node is being deleted
while time.time() < expiry():
    time.sleep(0.05)
def processes():
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"LOCAL_NODE={node}".encode() in path.read_bytes().split(b"\\0"):
                yield int(path.parent.name)
        except OSError:
            pass  # the process has exited, or belongs to another user
while found := list(processes()):
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.01)
"""


@dataclass(frozen=True)
class LocalNodes:
    """The nodes below one directory. Each node's directory is named after its instance ID, such as `slot0@lab`."""

    root: Path

    def is_running(self, instance_id: str) -> bool:
        """Return True if the node's keeper holds its lock. The kernel releases the lock when the keeper exits."""
        try:
            with (self.root / instance_id / "keeper").open() as lock:
                flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False  # there is no such node
        return False

    def start(self, record: ClusterRecord, instance_id: str) -> None:
        """Create a node with its tag, start its keeper, and wait until the keeper holds the lock.

        Raises:
            BusyError: Another state home has a cluster with this name.
            LaunchError: The keeper cannot be started.
        """
        try:
            (self.root / instance_id).mkdir(parents=True)
        except FileExistsError:
            raise name_in_use_error(record.name, self.tag(instance_id).get("owner", ""), "") from None
        self.write_tag(record, instance_id)
        try:
            self._run_keeper(instance_id, "start")
        except (OSError, subprocess.SubprocessError) as err:
            raise LaunchError(
                f"{instance_id} did not start: {err}", code="keeper", hint="run the command again"
            ) from err

    def write_tag(self, record: ClusterRecord, instance_id: str) -> None:
        """Write the cluster's token, owner and expiry to the node's directory."""
        identity, expiry = record.identity, record.lifecycle.expires_at
        tag = {"token": identity.token, "owner": identity.owner, "expires_epoch_s": expiry.timestamp()}
        write_durably(self.root / instance_id / "tag.json", json.dumps(tag))

    def tag(self, instance_id: str) -> dict[str, str]:
        """Return a node's tag; empty if the node's creation or deletion was interrupted. No keeper is running then."""
        with suppress(FileNotFoundError):
            return dict(files.read_json(self.root / instance_id / "tag.json"))
        return {}

    def find(self, cluster: str, **tag: str) -> tuple[str, ...]:
        """Return the instance IDs of a cluster's nodes whose tag contains these values, or that have no tag."""
        found = sorted(path.name for path in self.root.glob(f"*@{cluster}"))
        return tuple(node for node in found if self.tag(node).items() >= tag.items() or not self.tag(node))

    def end(self, instance_ids: Sequence[str]) -> bool:
        """Stop nodes and their processes, and remove their directories. Return True if any node was still running.

        Raises:
            TeardownError: A keeper or a process could not be stopped.
        """
        running = any(self.is_running(instance_id) for instance_id in instance_ids)
        for instance_id in instance_ids:
            try:
                (self.root / instance_id / "tag.json").unlink(missing_ok=True)
                # The second keeper waits for the first keeper's lock, then kills the processes that are still running.
                self._run_keeper(instance_id, "end")
                shutil.rmtree(self.root / instance_id)
            except (OSError, subprocess.SubprocessError) as err:
                hint = "run `cloudgpu down` again"
                raise TeardownError(f"{instance_id} did not stop: {err}", left=[instance_id], hint=hint) from err
        return running

    def _run_keeper(self, instance_id: str, action: str) -> None:
        keeper = [sys.executable, "-I", "-S", "-c", _KEEPER, str(self.root / instance_id), action]
        quiet = subprocess.DEVNULL
        subprocess.run(
            keeper, check=True, timeout=_KEEPER_S, cwd="/", start_new_session=True,
            stdin=quiet, stdout=quiet, stderr=quiet,
        )  # fmt: skip
