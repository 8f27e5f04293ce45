"""The AWS backend with the target `aws`.

Simulated: the AWS endpoint, which is the rehearsal server running in this process, and the nodes, which are
connections in memory that answer the commands of these tests and the command that extends the expiry. Real: everything
between the interface and the HTTP requests, with boto3.
"""

import os
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # read when moto is imported

from cloudgpu.aws.session.session import CloudEndpoint
from cloudgpu.backends.aws.account import AwsAccount, CloudTarget
from cloudgpu.backends.aws.backend import AwsBackend
from cloudgpu.backends.node_connections import NodeCarriers
from cloudgpu.state.cluster_record import ClusterRecord
from tests.backends.endpoint import EndpointHarness, SleepSkippingClock
from tests.fake_host import FakeHost, ScriptedResult
from tests.rehearsal.endpoint.conftest import rig_in


class AwsHarness(EndpointHarness):
    """One account at the simulated endpoint."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "aws", SleepSkippingClock())
        self._opened = ExitStack()
        self._rig = self._opened.enter_context(rig_in(self.files.home.root))
        self.armed: dict[str, int] = {}
        self.make_bucket()

    def backend(self) -> AwsBackend:
        cloud = self.rehearsal
        endpoint = CloudEndpoint(cloud.url, cloud.access_key_id, cloud.secret_access_key)
        where = CloudTarget("aws", endpoint, "", {})

        def reach(found, _private):
            return {instance.id: (instance.public_address, 22) for instance in found if instance.public_address}

        def open_cloud():
            environment = self.environment
            return AwsAccount(where, reach, self.settings, environment.clock, environment.calls)

        return AwsBackend(("aws", "AWS"), self.files.home, self.environment.clock, open_cloud, lambda: self)

    @property
    def carriers(self) -> NodeCarriers:
        return NodeCarriers(self.settings.ssh_key, self.environment.clock, (), lambda _node: None)

    def check(self) -> None:
        return

    def connect(self, nodes, emit):
        return [self._host(node) for node in nodes]

    def _host(self, node):
        host = FakeHost(node)

        def arm(_stdin):
            self.armed[node.instance_id] = int(host.sent[-1].text.split()[-1])
            return f"cloudgpu: this node ends itself at {self.armed[node.instance_id]}\n"

        host.on("^printf hello$", ScriptedResult(stdout="hello"))
        return host.on("lib/cloudgpu/expiry", ScriptedResult(reply=arm))

    def let_expire(self, record: ClusterRecord) -> None:
        """Terminate the nodes that received the expiry at launch, in place of their own timers."""
        received = {spec.instance_id for spec in self._rig.host.started if _expiry(record) in spec.user_data}
        for node in received.intersection(record.placement.instance_ids):
            self._rig.host.power_itself_off(node)

    def node_expiries(self, record: ClusterRecord) -> set[datetime]:
        return {datetime.fromtimestamp(self.armed[node], UTC) for node in record.placement.instance_ids}

    def close(self) -> None:
        super().close()
        self._opened.close()


def _expiry(record: ClusterRecord) -> bytes:
    return f"deadline={int(record.lifecycle.expires_at.timestamp())}".encode()
