"""In-memory self-managed hosts, whose agents keep leases like real ones and can be broken individually."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudgpu.backends.hosts.backend import HostsBackend, HostsContext
from cloudgpu.backends.hosts.delete import HostTeardown
from cloudgpu.backends.hosts.operations import HostClusters, HostProvisioning
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.errors import ConnectError
from cloudgpu.hosts.host import HostsFile, OwnHost
from cloudgpu.ledger.store import open_ledger
from cloudgpu.paths import Home
from cloudgpu.run.progress import Note
from cloudgpu.ssh.connection import ShownKey
from cloudgpu.state.record_store import RecordStore
from tests.fake_host import FakeHost, ScriptedResult
from tests.manual_clock import ManualClock
from tests.unit.plan.checks.table_hosts import lab as lab_of

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MARK = "\x1ecloudgpu\x1e"
GPUS = 8
V100 = {"name": "Tesla V100-SXM2-16GB", "memory_mib": 16384, "driver": "580.126.09"}


@dataclass
class Machine:
    """One host, with its GPU leases and injected faults."""

    name: str
    clock: ManualClock
    leases: dict = field(default_factory=dict)
    """Token -> the request that took the lease."""
    processes: list = field(default_factory=list)
    """Indexes of GPUs that a process without a lease uses."""
    left: list = field(default_factory=list)
    """Leftovers that `leave` cannot remove."""
    facts: dict = field(default_factory=dict)
    unreachable: bool = False
    clock_off_s: int = 0
    system: str = ""
    engine: dict = field(default_factory=dict)
    answers: dict = field(default_factory=dict)
    """Verb -> line printed in place of the correct response."""
    sent: list = field(default_factory=list)
    """Every request, as (verb, fields)."""
    connections: list = field(default_factory=list)

    def connect(self, node):
        if self.unreachable:
            return ConnectError(f"{self.name} is unreachable")
        host = FakeHost(node)
        host.on("").on("printf .*cloudgpu", ScriptedResult(stdout=f"{MARK}/home/ann{MARK}{MARK}"))
        for verb, reply in {"lease": self._lease, "leave": self._leave, "describe": self._describe}.items():
            host.on(
                f" {verb}$", ScriptedResult(reply=lambda stdin, verb=verb, reply=reply: self._reply(verb, reply, stdin))
            )
        self.connections.append(host)
        return host

    def _reply(self, verb, reply, stdin):
        length, newline, rest = stdin.partition(b"\n")
        request = json.loads(rest[int(length) :] if newline and length.isdigit() else stdin)
        self.sent.append((verb, request))
        action = request.get("action", verb)
        return self.answers[action] if action in self.answers else json.dumps(reply(request)) + "\n"

    def _used(self):
        return {gpu for lease in self.leases.values() for gpu in lease["devices"]} | set(self.processes)

    def _lease(self, request):
        if request["action"] == "take":
            free = sorted(set(range(GPUS)) - self._used())
            if len(free) < request["gpus"]:
                return {"error": f"{len(free)} of {GPUS} GPUs are free", "code": "leased", "hint": "wait"}
            devices = free[: request["gpus"]]
            self.leases[request["token"]] = {**request, "devices": devices}
            return {"devices": devices, "of": GPUS}
        if request["action"] == "extend":
            if request["token"] not in self.leases:
                return {"error": "the lease has expired", "code": "no-lease"}
            lease = self.leases[request["token"]]
            lease["expires_epoch_s"] = request["expires_epoch_s"]
            return {"devices": lease["devices"]}
        return {
            "gpus": list(range(GPUS)),
            "problem": "",
            "system": self.system or self.name,
            "engine": self.engine,
            "epoch_s": int(self.clock.now().timestamp()) + self.clock_off_s,
            "leases": [self._row(token, lease, request) for token, lease in self.leases.items()],
            "processes": [{"gpu": gpu, "told": f"GPU {gpu} by ben, process 4711"} for gpu in self.processes],
        }

    @staticmethod
    def _row(token, lease, request):
        return {
            "cluster": lease["cluster"],
            "owner": lease["owner"],
            "gpus": lease["devices"],
            "mine": token == request.get("token"),
            "told": f"{len(lease['devices'])} GPUs by {lease['owner']}",
        }

    def _leave(self, request):
        if "token" in request:
            matching = [token for token in self.leases if token == request["token"]]
        else:
            wanted = (request["cluster"], request["owner"])
            matching = [token for token, lease in self.leases.items() if (lease["cluster"], lease["owner"]) == wanted]
        gpus = [gpu for token in matching for gpu in self.leases[token]["devices"]]
        if not self.left:
            for token in matching:
                del self.leases[token]
        return {"clusters": len(matching), "gpus": gpus, "left": self.left}

    def _describe(self, _request):
        return {
            "python": "3.11.2",
            "hostname": self.name,
            "cpus": 96,
            "memory_mib": 768 * 1024,
            "disk_free_mib": 100_000,
            "gpus": [V100] * GPUS,
            "gpu_error": "",
            "addresses": [{"address": "10.0.0.7"}],
            "docker": "",
            "container_toolkit": False,
            "venv": True,
            "uv": False,
            "packages": "apt-get",
            "root": True,
            **self.facts,
        }


@dataclass
class Lab:
    """The hosts of an inventory, and everything needed to lease them."""

    home: Home
    records: RecordStore
    ledger: object
    clock: ManualClock
    hosts: tuple
    machines: dict
    events: list = field(default_factory=list)

    @property
    def backend(self):
        return HostsBackend(
            home=self.home,
            records=self.records,
            file=lambda: HostsFile(Path("hosts.yaml"), self.hosts),
            connect_all=lambda nodes: {node.index: self.machines[node.zone].connect(node) for node in nodes},
            connections=None,
            known_hosts=(),
            shown_key=lambda node: ShownKey("ssh-ed25519", f"SHA256:{node.zone}"),
            objects_of=lambda: SimpleNamespace(
                put_objects=lambda _url, _source: 7,
                objects=lambda url, *, expires_s: [(url, expires_s)],
                bucket_service=lambda url: url,
            ),
        )

    @property
    def context(self):
        backend = self.backend
        return HostsContext(
            backend, self.ledger, self.records, self.home, self.clock, "ann", self.events.append, backend
        )  # fmt: skip

    @property
    def provisioning(self):
        return HostProvisioning(self.context, Requester("ann", "vision", ""))

    @property
    def teardown(self):
        return HostTeardown(self.context)

    @property
    def extending(self):
        return HostClusters(self.context)

    @property
    def notes(self):
        return [event.text for event in self.events if isinstance(event, Note)]

    def plan(self, **resources):
        return lab_of(*self.hosts, resources=resources).plan()

    def leased(self):
        return {name: len(machine.leases) for name, machine in self.machines.items()}

    def rows(self):
        return {(row.spending.zone, row.state) for row in self.ledger.entries()}


def host(name, **fields):
    known = {"gpu": "V100", "gpus": GPUS, "gpu_memory_gib": Decimal(16), "rate_usd": Decimal(12), "pool": "dgx"}
    pinned = {"host_keys": ("SHA256:x",), "driver": "580.126.09"}
    return OwnHost(name, f"{name}.example.org", 22, "ann", 1, **{**known, **pinned, **fields})


@pytest.fixture
def make_lab(tmp_path):
    home = Home(tmp_path / "home").ensure()
    ledger = open_ledger(f"sqlite:///{home.ledger_db}")
    clock = ManualClock(NOON)

    def make(*hosts):
        machines = {host.name: Machine(host.name, clock) for host in hosts}
        return Lab(home, RecordStore(home), ledger, clock, hosts, machines)

    yield make
    ledger.engine.dispose()


@pytest.fixture
def lab(make_lab):
    """Two hosts with eight GPUs each."""
    return make_lab(host("red"), host("blue"))
