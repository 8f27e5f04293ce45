"""Count the API calls that create a cluster: 200 nodes need as many as 2."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from cloudgpu.aws.resources import registry
from cloudgpu.aws.session.session import CloudEndpoint, connect
from cloudgpu.clock import SystemClock
from cloudgpu.engine.base import Stack
from cloudgpu.engine.direct.engine import DirectEngine, JournalAccount
from cloudgpu.paths import bundled_folder
from cloudgpu.rehearsal import client
from tests.rehearsal.endpoint.conftest import PUBLIC_KEY, UBUNTU

pytestmark = pytest.mark.rehearsal

READS = ("Describe", "Get", "List")


class Gang:
    """The cluster program for a number of nodes, with its calls counted by the client and at the endpoint."""

    def __init__(self, rig, nodes):
        self.rig = rig
        self.name = f"n{nodes}"
        self.calls = []
        expiry = datetime.now(UTC) + timedelta(hours=2)
        self.config = {
            "cluster": self.name,
            "owner": "ada",
            "team": "vision",
            "run": "r-1",
            "expiresAt": expiry.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "token": f"token-{nodes}",
            "instanceType": "p3dn.24xlarge",
            "nodes": str(nodes),
            "zone": "us-east-1c",
            "market": "on-demand",
            "publicKey": PUBLIC_KEY.decode(),
            "sshCidr": "127.0.0.1/32",
            "image": UBUNTU,
            "diskGib": "100",
            "efaInterfaces": "1",
        }

    def engine(self):
        cloud = self.rig.cloud
        endpoint = CloudEndpoint(cloud.url, cloud.access_key_id, cloud.secret_access_key)
        session = connect(endpoint, "us-east-1", on_call=self.calls.append)
        return DirectEngine(
            clients_for=lambda _: session,
            handlers=registry,
            tags={"cloudgpu:cluster": self.name, "cloudgpu:token": self.config["token"]},
            identity=JournalAccount("123456789012", "rehearsal"),
            clock=SystemClock(),
        )

    def counted(self, work):
        """Return the result of `work`, the number of mutating calls, and the reads by operation."""
        self.calls.clear()
        client.put_faults(self.rig.cloud, [])
        result = work()
        reads = Counter(call.operation for call in self.calls if call.operation.startswith(READS))
        return result, client.faults(self.rig.cloud)["mutating_calls"], reads

    def stack(self):
        journal = self.rig.home.root / f"{self.name}.journal"
        return Stack(self.name, "us-east-1", bundled_folder("infra"), self.config, journal)


@pytest.mark.parametrize("sizes", [(2, 64), pytest.param((2, 16, 200), marks=pytest.mark.full)])
def test_number_of_api_calls_is_independent_of_cluster_size(rig, sizes):
    made = {}
    for nodes in sizes:
        gang = Gang(rig, nodes)
        applied, changing, reads = gang.counted(lambda gang=gang: gang.engine().up(gang.stack(), lambda _: None))
        assert len(applied.outputs["instanceIds"]) == nodes
        # One call asks about all nodes; how often depends on how long they take.
        polls = reads.pop("DescribeInstances")
        assert polls < 13
        made[nodes] = (changing, reads)
        _, ended, reads = gang.counted(lambda gang=gang: gang.engine().destroy(gang.stack(), lambda _: None))
        assert reads.pop("DescribeInstances") < 13
        made[nodes] += (ended,)
    assert all(counts == made[2] for counts in made.values()), made
    assert client.nodes(rig.cloud) == ()


def test_single_node_cluster_saves_the_placement_group_call(rig):
    counts = {}
    for nodes in (1, 2):
        gang = Gang(rig, nodes)
        _, counts[nodes], _ = gang.counted(lambda gang=gang: gang.engine().up(gang.stack(), lambda _: None))
        assert sum(call.operation == "CreateFleet" for call in gang.calls) == 1
        gang.engine().destroy(gang.stack(), lambda _: None)
    assert counts[2] == counts[1] + 1
