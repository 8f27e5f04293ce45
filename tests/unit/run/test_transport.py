"""The network between nodes as agents report it, its description, and the warning while a run is followed."""

import json
from datetime import UTC, datetime

import pytest

from cloudgpu.app.runs.finish import with_final_status
from cloudgpu.app.runs.nodes import FollowResult
from cloudgpu.errors import RemoteCommandError
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.paths import RunPaths
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent import Agent
from cloudgpu.run.agent_messages import Verdict
from cloudgpu.run.follow import follow
from cloudgpu.run.job import Job
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.progress import Note
from cloudgpu.run.stage import Staged
from cloudgpu.run.start import start
from cloudgpu.run.transport import NodeTransport, RunNetwork, describe_transport, slowest
from cloudgpu.state.run_records import RunRecord
from tests.fake_host import FakeHost, ScriptedResult
from tests.manual_clock import ManualClock

AT = datetime(2026, 11, 21, tzinfo=UTC)
EFA, TCP, UNKNOWN = (
    NodeTransport(0, "efa"),
    NodeTransport(1, "tcp", "Using network Socket"),
    NodeTransport(2, "unknown"),
)


def node(index: int = 0, instance_type: str = "p4d.24xlarge") -> Node:
    keys = ("SHA256:x",)
    return Node(index, f"i-{index}", "127.0.0.2", 22, "ubuntu", keys, "127.0.0.2", instance_type, "z", "A100", 8, False)


def record(network: str = "auto", **more) -> RunRecord:
    resolved = {
        "schema": 1,
        "name": "net",
        "resources": {"instance_type": "p4d.24xlarge", "nodes": 2, "network": network},
        "launch": {"with": "torchrun", "command": "train.py"},
    }
    Recipe.model_validate(resolved)
    return RunRecord("net-1", "c", "net", "r", "me", "", "aws", AT, resolved=resolved, **more)


def test_slowest_network_of_all_nodes_counts() -> None:
    assert slowest([EFA, TCP, UNKNOWN]) is TCP
    assert slowest([EFA, UNKNOWN]) is EFA
    assert slowest([EFA, NodeTransport(3, "ib")]).name == "ib"
    assert slowest([UNKNOWN]) is UNKNOWN
    assert slowest([]) is None


@pytest.mark.parametrize(
    ("name", "instance_type", "network", "text"),
    [
        ("efa", "p4d.24xlarge", "efa", "efa"),
        (
            "tcp",
            "p4d.24xlarge",
            "auto",
            "tcp, although p4d.24xlarge has EFA: a TCP flow carries at most 10 of the node's 400 Gb/s",
        ),
        ("tcp", "p4d.24xlarge", "tcp", "tcp"),
        ("tcp", "g5.xlarge", "auto", "tcp"),
        ("gib", "p4d.24xlarge", "auto", "gib, although p4d.24xlarge has EFA"),
        ("unknown", "p4d.24xlarge", "auto", "unknown: NCCL named no network"),
        (
            "unknown",
            "p4d.24xlarge",
            "efa",
            "unknown: NCCL named no network; network: efa was required but not confirmed",
        ),
    ],
)
def test_network_is_described_with_the_cost_of_a_slower_one(name, instance_type, network, text) -> None:
    assert describe_transport(name, instance_type, network) == text


def test_networks_arrive_between_the_logs_and_the_final_status(tmp_path) -> None:
    answers = [
        {"transport": {"name": "unknown", "line": "", "why": ""}},
        {"rank": 0, "offset": 0, "bytes": 2, "data": "a\n"},
        {"transport": {"name": "tcp", "line": "Using network Socket\x1b[2J", "why": ""}},
        {"status": {"state": "succeeded", "first_failure": None}},
    ]
    host = FakeHost(node()).on(" follow$", ScriptedResult(stdout="".join(json.dumps(one) + "\n" for one in answers)))
    items = list(
        follow([Agent(host, "/a", "/h")], {0: [0]}, {0: "/run"}, LogStore(RunPaths(tmp_path)), ManualClock(AT))
    )
    assert items[0] == NodeTransport(0, "unknown")
    assert items[2] == NodeTransport(0, "tcp", "Using network Socket\ufffd[2J")
    assert items[3] == Verdict("succeeded", teller=0)


@pytest.mark.parametrize("answer", [None, [], {}, {"name": ""}, "tcp"])
def test_malformed_network_message_is_rejected(answer) -> None:
    with pytest.raises(RemoteCommandError, match="malformed network message"):
        NodeTransport.of(0, answer)


@pytest.mark.parametrize(("network", "required"), [("efa", "efa"), ("auto", ""), ("tcp", "")])
def test_agents_are_asked_to_watch_the_network_and_to_require_efa(network, required) -> None:
    resolved = Recipe.model_validate(record(network).resolved)
    hosts = [FakeHost(node(index)) for index in (0, 1)]
    for host in hosts:
        host.on(r"^mkdir| start$", ScriptedResult(stdout='{"started": true}\n'))
    agents = [Agent(host, "/home/ubuntu/.cloudgpu/agent.py", "/home/ubuntu", "") for host in hosts]
    staged = Staged(dict.fromkeys((0, 1), "python3"), {}, 0, 0, environment_built=False)
    start(Job("net-1", resolved, Inventory("c", (hosts[0].node, hosts[1].node)), "token"), agents, staged, {})
    requests = [json.loads(sent.stdin) for host in hosts for sent in host.sent if sent.text.endswith(" start")]
    assert [request["transport"] for request in requests] == [{"required": required}] * 2


def notes(network: str, *reported: NodeTransport) -> list[Note]:
    heard: list[Note] = []
    seen = RunNetwork(heard.append, network, Inventory("c", (node(), node(1))))
    for one in reported:
        seen.add(one)
    assert seen.name == slowest(reported).name
    return heard


def test_warning_of_a_slower_network_is_shown_once_with_the_reason_and_the_remedy() -> None:
    slow = NodeTransport(1, "tcp", "Using network Socket", "NET/Plugin: Could not find: libnccl-net.so")
    (note,) = notes("auto", UNKNOWN, slow, NodeTransport(0, "tcp"), slow)
    assert note == Note(
        "warning: network between the nodes: tcp, although p4d.24xlarge has EFA: a TCP flow carries at most 10 of the "
        "node's 400 Gb/s (NCCL: NET/Plugin: Could not find: libnccl-net.so); NCCL uses EFA through the plugin "
        "aws-ofi-nccl, which images/efa-nccl adds to an image; `resources.network: efa` fails such a run",
        1,
    )


def test_plugin_that_nccl_will_not_find_is_a_warning_before_nccl_names_a_network() -> None:
    missing = NodeTransport(1, "unknown", "", "the loader cannot find libnccl-net.so")
    (note,) = notes("auto", UNKNOWN, missing, missing)
    assert note == Note(
        "warning: NCCL will not use EFA between the nodes: the loader cannot find libnccl-net.so; NCCL uses EFA "
        "through the plugin aws-ofi-nccl, which images/efa-nccl adds to an image; `resources.network: efa` fails such "
        "a run",
        1,
    )


def test_expected_network_is_shown_without_a_warning_and_an_unknown_one_not_at_all() -> None:
    assert notes("efa", EFA) == [Note("network between the nodes: efa", 0)]
    assert notes("tcp", TCP) == [Note("network between the nodes: tcp", 1)]
    assert notes("efa", UNKNOWN) == []


@pytest.mark.parametrize(
    ("network", "transport", "state"),
    [
        ("efa", "tcp", "failed"),
        ("efa", "efa", "succeeded"),
        ("efa", "unknown", "succeeded"),
        ("efa", "", "succeeded"),
        ("auto", "tcp", "succeeded"),
    ],
)
def test_run_that_ended_before_its_agents_could_fail_it_is_failed(network, transport, state) -> None:
    ended = with_final_status(record(network), FollowResult(Verdict("succeeded"), (), (), transport))
    assert (ended.state, ended.transport) == (state, transport)
    assert ("NCCL used tcp" in ended.reason) is (state == "failed")
