"""Port parsing, progress messages and reconnection of tunnels."""

from types import SimpleNamespace

import pytest

from cloudgpu.app.runs.services import RunService
from cloudgpu.app.tunnels import (
    OpenTunnel,
    PortForward,
    describe_tunnel,
    is_port_forward,
    keep_connected,
    open_tunnels,
    parse_port_forwards,
    service_ports,
)
from cloudgpu.errors import ConnectError, HostKeyError, SshSetupError, StateError, UsageError
from cloudgpu.recipe.launch_sections import Endpoint
from cloudgpu.ssh.connection import SilentPortError
from tests.manual_clock import ManualClock
from tests.unit.app.conftest import START, node

LAB = SimpleNamespace(name="lab")


def test_ports_are_given_as_numbers_or_pairs():
    assert parse_port_forwards(["8888", "9000:6006"]) == (PortForward(8888), PortForward(6006, 9000))
    assert parse_port_forwards(["8888"], 9000) == (PortForward(8888, 9000),)
    assert [is_port_forward(text) for text in ("8888", "1:2", "lab", "lab-1", "1:2:3")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("texts", "local", "message"),
    [
        (["http"], None, "http is not a port"),
        (["0"], None, "0 is not a port: expected 1 to 65535"),
        (["70000"], None, "70000 is not a port: expected 1 to 65535"),
        (["70000:80"], None, "70000 is not a port: expected 1 to 65535"),
        (["80", "81"], 9000, "--local requires exactly one port, without LOCAL"),
        (["9000:80"], 9000, "--local requires exactly one port, without LOCAL"),
        (["80", "80"], None, "port 80 is specified twice"),
        (["9000:80", "9000:81"], None, "local port 9000 is specified twice"),
    ],
)
def test_invalid_port_forwards_are_rejected(texts, local, message):
    with pytest.raises(UsageError) as raised:
        parse_port_forwards(texts, local)
    assert raised.value.message == message
    assert raised.value.hint


def test_tunnel_without_port_requires_a_service():
    service = RunService("jupyter", Endpoint(port=8888, page="/lab?token={token}"), "abc", main=True)
    assert service_ports([service], "lab") == ["8888"]
    with pytest.raises(UsageError, match="no port specified"):
        service_ports([], "lab")
    description = describe_tunnel(OpenTunnel(8888, 9000), "lab", 0, [service])
    assert description == "http://127.0.0.1:9000/lab?token=abc opens jupyter, port 8888 on node 0 of cluster lab"
    assert (
        describe_tunnel(OpenTunnel(22, 9000), "lab", 1) == "127.0.0.1:9000 forwards to port 22 on node 1 of cluster lab"
    )
    assert "abc" not in repr(service)


class Host:
    """A connection that breaks and recovers as scripted. `on_outcome` is the callback passed to the tunnel."""

    def __init__(self, dials=(), probes=()):
        self.node = node(1, private_address="10.0.0.2")
        self.connected, self.dials, self.probes, self.on_outcome = True, list(dials), list(probes), None

    def forward(self, port, *, local, near, on_outcome):
        self.on_outcome, self.forwarded = on_outcome, (port, local, near)
        return local

    def try_run(self, _command):
        self._next(self.probes)

    def connect(self):
        self._next(self.dials)

    def _next(self, script):
        what = script.pop(0) if script else KeyboardInterrupt
        if what is not None:
            raise what


class Notes(list):
    def __call__(self, note):
        self.append(note.text)


def test_silent_port_is_reported_once_and_again_on_response():
    host, notes = Host(), Notes()
    assert open_tunnels(host, [PortForward(8888)], notes) == (OpenTunnel(8888, 8888),)
    assert host.forwarded == (8888, 8888, True)
    silent = SilentPortError("no")
    for trouble in (silent, silent, None, None, ConnectError("lost the connection to node 1")):
        host.on_outcome(trouble)
    assert notes == [
        "nothing is listening on port 8888 on node 1; "
        "the tunnel stays open and forwards new connections when the port responds",
        "port 8888 on node 1 is now reachable",
        "lost the connection to node 1",
    ]


def held(host, *, deleted=False):
    notes, authorize_caller, clock = Notes(), [], ManualClock(START)
    records = SimpleNamespace(cluster=lambda _name: None if deleted else LAB)
    error = None
    try:
        keep_connected(host, LAB, records=records, clock=clock, emit=notes, authorize_caller=authorize_caller.append)
    except (KeyboardInterrupt, StateError, HostKeyError, SshSetupError) as raised:
        error = raised
    return notes, authorize_caller, clock.monotonic(), error


def test_broken_connection_is_redialed_and_caller_reauthorized():
    lost = ConnectError("lost the connection to node 1")
    notes, authorize_caller, _, error = held(Host(probes=[lost], dials=[lost, lost, None]))
    assert isinstance(error, KeyboardInterrupt)
    assert notes == ["lost the connection to node 1; reconnecting", "reconnected after 3 s"]
    assert authorize_caller == [LAB]


def test_idle_connection_is_probed_periodically():
    _, _, seconds, _ = held(Host(probes=[None, None]))
    assert 45 <= seconds <= 50


def test_deleted_cluster_closes_its_tunnels():
    notes, _, _, error = held(Host(probes=[ConnectError("lost")]), deleted=True)
    assert isinstance(error, StateError)
    assert (notes, error.message) == (["lost; reconnecting"], "cluster lab has been deleted")


@pytest.mark.parametrize("where", ["probes", "dials"])
@pytest.mark.parametrize("error", [HostKeyError("another key"), SshSetupError("cannot read the SSH key")])
def test_faults_that_cannot_heal_close_the_tunnels(where, error):
    script = {"probes": [ConnectError("lost")], where: [error]}
    assert held(Host(**script))[3] is error


def test_broken_connection_is_detected_before_the_next_probe():
    host = Host(probes=[ConnectError("lost")])
    host.connected = False
    assert held(host)[2] == 1.0
