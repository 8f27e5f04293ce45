"""A rehearsal cloud with simulated nodes and simulated time, whose state can be saved and restored.

`python cloud_server.py HOME CLOCK` reads one JSON request per line from standard input and writes one JSON response per
line to standard output. `{"save": name}` saves a snapshot of the current state, `{"restore": name}` replaces the
current state with a snapshot, and `{"status": ""}` does neither. Every response contains `pending_calls`, the number
of API calls in progress, including those of callers that have been killed.
"""

import io
import json
import logging
import os
import sys
import threading
import time
import traceback
from pathlib import Path

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # read when moto is imported

from moto.core.base_backend import BackendDict
from shared_clock import SharedClock

from cloudgpu.paths import Home
from cloudgpu.rehearsal.aws_api import simulated_cloud
from cloudgpu.rehearsal.aws_api import store as state_store
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.server.endpoint import EndpointApplication
from cloudgpu.rehearsal.server.main import RehearsalServer
from tests.rehearsal.fake_nodes import FakeNodeHost


class PassiveClock(SharedClock):
    """Clock whose sleeps wait for other processes to advance the time, so that a delayed call really is late."""

    def sleep(self, seconds):
        until = self.monotonic() + seconds
        while self.monotonic() < until:
            time.sleep(0.001)


class CallCounter:
    """Counter of the API calls that the endpoint is processing."""

    def __init__(self):
        self.pending = 0
        self._lock = threading.Lock()
        real = EndpointApplication._execute

        def counted(endpoint, *call):
            self._add(1)
            try:
                return real(endpoint, *call)
            finally:
                self._add(-1)

        EndpointApplication._execute = counted

    def _add(self, number):
        with self._lock:
            self.pending += number


def dump_state(store):
    """Return the in-memory state by service and region."""
    contents = {name: store._dump(name, backend) for name, backend in state_store._live()}
    return {name: content for name, content in contents.items() if content}


def load_state(store, contents):
    """Replace the in-memory state with one that `dump_state` returned."""
    BackendDict.reset()
    store._written.clear()
    # Same order as the store loads them, because file systems refer to EC2's subnets.
    for name, content in sorted(contents.items()):
        state_store._shelve(name, state_store._Unpickler(io.BytesIO(content), store._objects).load())


class Snapshots:
    """Named snapshots of one server. Each method handles the request of the same name."""

    def __init__(self, server, nodes):
        self._server = server
        self._nodes = nodes
        self._saved = {}

    def save(self, name):
        with self._server._lock:
            nodes = self._nodes.read_bytes() if self._nodes.exists() else b"{}"
            self._saved[name] = (dump_state(self._server._ready_cloud()._store), nodes)

    def status(self, _name):
        """Do nothing. The response contains the number of pending calls."""

    def restore(self, name):
        contents, nodes = self._saved[name]
        with self._server._lock:
            cloud = self._server._ready_cloud()
            self._server.faults.put([])
            load_state(cloud._store, contents)
            self._nodes.write_bytes(nodes)
            cloud._keeper.reconcile()


def main(home, clock):
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    # Other tests cover durability across a killed server. Here it would only slow down every call.
    simulated_cloud.Store.save = lambda _store, *, mutated: None
    files = RehearsalFiles.of(home)
    files.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    nodes = files.root / "fake-nodes.json"
    server = RehearsalServer(home, FakeNodeHost(nodes), PassiveClock(clock), idle_minutes=100_000)
    thread = threading.Thread(target=server.run)
    thread.start()
    snapshots, calls = Snapshots(server, nodes), CallCounter()
    for line in sys.stdin:
        ((request, name),) = json.loads(line).items()
        try:
            getattr(snapshots, request)(name)
        except BaseException:  # noqa: BLE001 - after any error the process must exit
            # Otherwise the server's thread would keep the process alive, and the caller would wait forever.
            traceback.print_exc()
            os._exit(1)
        print(json.dumps({"done": request, "pending_calls": calls.pending}), flush=True)
    server.stop_keeping_nodes()
    thread.join()


if __name__ == "__main__":
    main(Home(Path(sys.argv[1])), Path(sys.argv[2]))
