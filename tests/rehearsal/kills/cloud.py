"""A rehearsal cloud whose nodes only pretend, on a simulated time, that can be put back to an earlier state.

`python cloud.py HOME CLOCK`. One JSON request a line on standard input, one JSON answer a line on standard output:
`{"keep": name}` keeps the present state under a name, `{"bring": name}` puts it in the place of the present one;
every answer says how many calls are `under_way`, those of callers that are dead too.
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
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.server.endpoint import EndpointApplication
from cloudgpu.rehearsal.server.main import RehearsalServer
from cloudgpu.rehearsal.state import store as state_store
from tests.rehearsal.fake_nodes import FakeNodeHost


class AwaitedClock(SharedClock):
    """The cloud's own waits let the time pass that others make: what it delays comes late, not at once."""

    def sleep(self, seconds):
        until = self.monotonic() + seconds
        while self.monotonic() < until:
            time.sleep(0.001)


class UnderWay:
    """Counts the calls that are being answered."""

    def __init__(self):
        self.count = 0
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
            self.count += number


def snapshot(store):
    """The state by service and region, as it is in memory."""
    contents = {name: store._dump(name, backend) for name, backend in state_store._live()}
    return {name: content for name, content in contents.items() if content}


def bring_back(store, contents):
    """Replace the state in memory by one that `snapshot` returned."""
    BackendDict.reset()
    store._written.clear()
    # Sorted as the store loads them: file systems refer to EC2's subnets.
    for name, content in sorted(contents.items()):
        state_store._shelve(name, state_store._Unpickler(io.BytesIO(content), store._objects).load())


class Keeper:
    """Keeps states of one server."""

    def __init__(self, server, nodes):
        self._server = server
        self._nodes = nodes
        self._kept = {}

    def keep(self, name):
        with self._server._lock:
            nodes = self._nodes.read_bytes() if self._nodes.exists() else b"{}"
            self._kept[name] = (snapshot(self._server._ready_cloud()._store), nodes)

    def look(self, _name):
        """Only for the answer."""

    def bring(self, name):
        contents, nodes = self._kept[name]
        with self._server._lock:
            cloud = self._server._ready_cloud()
            self._server.faults.put([])
            bring_back(cloud._store, contents)
            self._nodes.write_bytes(nodes)
            cloud._keeper.reconcile()


def main(home, clock):
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    # What a killed server must find again is proven elsewhere; here every call would pay for it.
    simulated_cloud.Store.save = lambda _store, *, mutated: None
    files = RehearsalFiles.of(home)
    files.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    nodes = files.root / "pretended.json"
    server = RehearsalServer(home, FakeNodeHost(nodes), AwaitedClock(clock), idle_minutes=100_000)
    thread = threading.Thread(target=server.run)
    thread.start()
    keeper, under_way = Keeper(server, nodes), UnderWay()
    for line in sys.stdin:
        ((verb, name),) = json.loads(line).items()
        try:
            getattr(keeper, verb)(name)
        except BaseException:  # noqa: BLE001 - whatever it is, the process has to end
            # The server's thread would keep a failed process alive, and whoever asked would wait for ever.
            traceback.print_exc()
            os._exit(1)
        print(json.dumps({"done": verb, "under_way": under_way.count}), flush=True)
    server.leave()
    thread.join()


if __name__ == "__main__":
    main(Home(Path(sys.argv[1])), Path(sys.argv[2]))
