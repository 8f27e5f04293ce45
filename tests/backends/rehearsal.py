"""The rehearsal backend, with a real rehearsal server whose nodes are real SSH hosts. Only AWS is simulated."""

from datetime import UTC, datetime
from pathlib import Path

from cloudgpu.backends.aws.backend import AwsBackend
from cloudgpu.backends.rehearsal import open_backend, start_rehearsal
from cloudgpu.rehearsal import client
from cloudgpu.ssh.command import Raw, RemoteCommand
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.nodes import stored_inventory
from tests.backends.endpoint import EndpointHarness, ShiftedClock

EXPIRY = Raw('cat "${CLOUDGPU_NODE_ROOT:-}/var/lib/cloudgpu/expires-at"')


class RehearsalHarness(EndpointHarness):
    """The rehearsal cloud of one state home."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "rehearsal", ShiftedClock())
        start_rehearsal(self.environment)
        self.make_bucket()

    def backend(self) -> AwsBackend:
        return open_backend(self.environment)

    def let_expire(self, record: ClusterRecord) -> None:
        clock, margin_s = self.files.clock, 60
        left_s = (record.lifecycle.expires_at - clock.now()).total_seconds() + margin_s
        clock.skip(left_s)  # first, so that no cluster of another test has an expiry in the past
        client.advance(self.rehearsal, left_s)

    def node_expiries(self, record: ClusterRecord) -> set[datetime]:
        hosts = self.backend().connect(stored_inventory(self.files.home, record).nodes, lambda _event: None)
        try:
            answers = [host.run(RemoteCommand("sudo", "-n", "sh", "-c", EXPIRY.text)).stdout for host in hosts]
        finally:
            for host in hosts:
                host.close()
        return {datetime.fromtimestamp(int(answer), UTC) for answer in answers}

    def close(self) -> None:
        super().close()
        client.stop(self.files.home)
