"""The backend for self-managed hosts, with agents and SSH connections simulated in memory.

The records, the ledger and the protocol of the agents are real. tests/system/hosts leases real hosts.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

from cloudgpu.backends.hosts.backend import HostsBackend
from cloudgpu.backends.node_connections import NodeCarriers
from cloudgpu.errors import ConnectError
from cloudgpu.run.dataset_copies import S3Service
from cloudgpu.run.registry_logins import RegistryLogin
from cloudgpu.state.cluster_record import ClusterRecord
from tests.backends.harness import Files
from tests.fake_host import ScriptedResult
from tests.manual_clock import ManualClock
from tests.unit.backends.hosts.conftest import NOON, Lab, Machine, host


@dataclass(frozen=True)
class Connections:
    """Connections to the in-memory hosts."""

    machines: dict
    carriers: NodeCarriers

    def connect(self, nodes, emit):
        hosts = [self.machines[node.zone].connect(node) for node in nodes]
        for connection in hosts:
            connection.on("^printf hello$", ScriptedResult(stdout="hello"))
        return hosts


class HostsHarness:
    """Two hosts with eight GPUs each. The harness itself ends leases at their expiry, in place of the lease daemon."""

    short_expiry_s = 3600
    optional_url = "s3://bucket/data"

    def __init__(self, folder: Path) -> None:
        clock = ManualClock(NOON)
        self.files = Files(folder, "{gpu: 'V100:8', nodes: 2}", clock)
        hosts = (host("red"), host("blue"))
        machines = {host.name: Machine(host.name, clock) for host in hosts}
        self.lab = Lab(self.files.home, self.files.records, self.files.ledger, clock, hosts, machines)

    def backend(self) -> HostsBackend:
        buckets = SimpleNamespace(
            put_objects=lambda _url, _source: 7,
            objects=lambda _url, *, expires_s: [],
            bucket_service=lambda _url: S3Service(),
            registry_login=lambda _region: RegistryLogin("user", "password"),
        )
        carriers = NodeCarriers(Path("key"), self.files.clock, (), lambda _node: None)
        connections = Connections(self.lab.machines, carriers)
        return replace(self.lab.backend, connections=connections, objects_of=lambda: buckets)

    def unreachable(self) -> HostsBackend:
        def fail(nodes):
            return {node.index: ConnectError(f"{node.zone} is unreachable") for node in nodes}

        return replace(self.backend(), connect_all=fail)

    def crash(self, record: ClusterRecord, index: int) -> None:
        del self.lab.machines[record.placement.instance_ids[index].partition("@")[0]].leases[record.identity.token]

    def expire(self, record: ClusterRecord) -> None:
        self.files.clock.sleep(
            (record.lifecycle.expires_at - self.files.clock.now() + timedelta(seconds=1)).total_seconds()
        )
        now = self.files.clock.now().timestamp()
        for machine in self.lab.machines.values():
            expired = [token for token, lease in machine.leases.items() if lease["expires_epoch_s"] <= now]
            for token in expired:
                del machine.leases[token]

    def node_expiries(self, record: ClusterRecord) -> set[datetime]:
        leases = [machine.leases[record.identity.token] for machine in self.lab.machines.values()]
        return {datetime.fromtimestamp(lease["expires_epoch_s"], UTC) for lease in leases}

    def resources(self, name: str) -> list[str]:
        leases = [lease for machine in self.lab.machines.values() for lease in machine.leases.values()]
        return [lease["cluster"] for lease in leases if lease["cluster"] == name]

    def close(self) -> None:
        self.files.ledger.engine.dispose()
