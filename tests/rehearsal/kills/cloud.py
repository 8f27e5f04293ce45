"""A rehearsal cloud whose nodes only pretend, on a simulated time, that can be put back to an earlier state.

`python cloud.py HOME CLOCK`. One JSON request a line on standard input, one JSON answer a line on standard output:
`{"keep": name}` keeps the present state under a name, `{"bring": name}` puts it in the place of the present one.
"""

import json
import logging
import os
import sys
import threading
from pathlib import Path

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # read when moto is imported

from shared_clock import SharedClock

from cloudgpu.paths import Home
from cloudgpu.rehearsal import simulated_cloud
from cloudgpu.rehearsal.fake_nodes import FakeHost
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.server import RehearsalServer


class Keeper:
    """Keeps states of one server."""

    def __init__(self, server, nodes):
        self._server = server
        self._nodes = nodes
        self._kept = {}

    def keep(self, name):
        with self._server._lock:
            nodes = self._nodes.read_bytes() if self._nodes.exists() else b"{}"
            self._kept[name] = (self._server._ready_cloud()._store.snapshot(), nodes)

    def bring(self, name):
        snapshot, nodes = self._kept[name]
        with self._server._lock:
            cloud = self._server._ready_cloud()
            self._server.faults.put([])
            cloud._store.bring_back(snapshot)
            self._nodes.write_bytes(nodes)
            cloud._keeper.reconcile()


def main(home, clock):
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    # What a killed server must find again is proven elsewhere; here every call would pay for it.
    simulated_cloud.SimulatedCloud.save = lambda _cloud, *, mutated: None
    files = RehearsalFiles.of(home)
    files.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    nodes = files.root / "pretended.json"
    server = RehearsalServer(home, FakeHost(nodes), SharedClock(clock), idle_minutes=100_000)
    thread = threading.Thread(target=server.run)
    thread.start()
    keeper = Keeper(server, nodes)
    for line in sys.stdin:
        ((verb, name),) = json.loads(line).items()
        getattr(keeper, verb)(name)
        print(json.dumps({"done": verb}), flush=True)
    server.leave()
    thread.join()


if __name__ == "__main__":
    main(Home(Path(sys.argv[1])), Path(sys.argv[2]))
