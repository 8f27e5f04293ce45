"""A node that does not respond while it should boot: is it still running?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudgpu.backends.aws.session_manager import node_connections
from cloudgpu.backends.node_connections import NodeCarriers, NodeConnections
from cloudgpu.errors import CloudError, ConnectError
from cloudgpu.launch.inventory import Node
from cloudgpu.run.progress import Activity, Note, ProgressEvent
from cloudgpu.ssh import fanout
from cloudgpu.ssh.fanout import TerminatedNodeError, all_or_raise
from tests.manual_clock import ManualClock

NODE = Node(
    0, "i-0", "127.0.0.1", 22, "ubuntu", ("SHA256:x",), "127.0.0.1", "p3.2xlarge", "us-east-1a", "V100", 1, True
)
BOOT_S = 600.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    def refuse(node: Node, _key: Path, **_more: object) -> None:
        raise ConnectError(f"node {node.index} refused the connection")

    monkeypatch.setattr(fanout, "connect", refuse)
    return ManualClock(datetime(2026, 11, 27, tzinfo=UTC))


def connect(clock: ManualClock, states: Callable[[Sequence[Node]], Mapping[str, str]]) -> ConnectError:
    return connect_and_listen(clock, states)[0]


def connect_and_listen(
    clock: ManualClock, states: Callable[[Sequence[Node]], Mapping[str, str]]
) -> tuple[ConnectError, list[ProgressEvent]]:
    carriers = NodeCarriers(Path("key"), clock, (), lambda _node: pytest.fail("not behind Session Manager"))
    connections = NodeConnections(Path("key"), clock, BOOT_S, carriers, states=states)
    heard: list[ProgressEvent] = []
    with pytest.raises(ConnectError) as caught:
        connections.connect([NODE], heard.append)
    return caught.value, heard


def test_wait_reports_its_limit_and_the_last_answer_until_it_is_over(clock):
    _, heard = connect_and_listen(clock, lambda _nodes: {"i-0": "running"})
    waiting = Activity("waiting for SSH", 0, limit_s=BOOT_S, last="node 0 refused the connection")
    assert heard[0] == Note("connecting to 1 node", detail=True)
    assert heard[1:-1] == [waiting] * (len(heard) - 2)
    assert len(heard) > 100
    assert heard[-1] == Activity("waiting for SSH", 0, finished=True)


@pytest.mark.parametrize("state", ["shutting-down", "terminated", "stopping", "stopped"])
def test_wait_ends_when_an_instance_no_longer_runs(clock, state):
    error = connect(clock, lambda _nodes: {"i-0": state})
    assert isinstance(error, TerminatedNodeError)
    assert error.message == f"node 0 (i-0) is {state}, so it cannot respond over SSH"
    assert error.hint == "look at the cluster: `cloudgpu status --refresh`"
    assert clock.monotonic() < BOOT_S / 4


@pytest.mark.parametrize("states", [{"i-0": "running"}, {"i-0": "pending"}, {}])
def test_wait_lasts_to_its_limit_while_instances_run_or_their_states_are_unknown(clock, states):
    error = connect(clock, lambda _nodes: states)
    assert error.message.startswith("node 0 refused the connection")
    assert clock.monotonic() >= BOOT_S


def test_cloud_that_cannot_be_queried_does_not_end_the_wait(clock):
    def unavailable(_nodes: Sequence[Node]) -> Mapping[str, str]:
        raise CloudError("EC2 does not respond", code="EndpointConnectionError")

    assert connect(clock, unavailable).message.startswith("node 0 refused the connection")
    assert clock.monotonic() >= BOOT_S


def test_terminated_node_takes_precedence_in_the_summary():
    outcomes = {0: ConnectError("node 0 refused the connection"), 1: TerminatedNodeError("node 1 is terminated")}
    with pytest.raises(TerminatedNodeError, match=r"^node 1 is terminated \(2 of 2 nodes failed; also: 0\)$"):
        all_or_raise(outcomes)


def test_states_are_looked_up_every_fifteen_seconds(clock):
    asked: list[float] = []

    def states(nodes: Sequence[Node]) -> Mapping[str, str]:
        assert list(nodes) == [NODE]
        asked.append(clock.monotonic())
        return {"i-0": "running"}

    connect(clock, states)
    assert 20 <= len(asked) <= BOOT_S / 15
    assert asked[0] >= 15
    assert all(later - earlier >= 15 for earlier, later in pairwise(asked))


def test_states_of_nodes_on_aws_are_looked_up_in_the_region_of_each_node(clock, tmp_path):
    local = replace(NODE, index=1, instance_id="i-1", zone="us-west-2-lax-1a")
    states = {"us-east-1": {"i-0": "running"}, "us-west-2": {"i-1": "terminated"}}
    cloud = SimpleNamespace(instance_states=lambda region, ids: {one: states[region][one] for one in ids})
    settings = SimpleNamespace(ssh_key=tmp_path / "key", boot_seconds=600)
    environment = SimpleNamespace(settings=settings, clock=clock, known_hosts=(), environ={})
    connections = node_connections(environment, lambda: cloud)  # type: ignore[arg-type]
    assert connections.states([NODE, local]) == {"i-0": "running", "i-1": "terminated"}
