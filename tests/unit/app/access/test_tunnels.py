"""Tunnels: what is asked for, what is said while they stay open, and what becomes of a connection that breaks."""

from types import SimpleNamespace

import pytest

from cloudgpu.app.access.tunnels import (
    OpenTunnel,
    PortForward,
    describe_tunnel,
    is_port_forward,
    keep_connected,
    open_tunnels,
    parse_port_forwards,
    service_ports,
)
from cloudgpu.app.runs.service_urls import RunService
from cloudgpu.clock import ManualClock
from cloudgpu.errors import ConnectError, HostKeyError, StateError, UsageError
from cloudgpu.recipe.sections.service import Endpoint
from cloudgpu.ssh.connection import SilentPortError
from tests.unit.app.conftest import START, node

LAB = SimpleNamespace(name="lab")


def test_ports_are_numbers_or_pairs():
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
        (["80", "81"], 9000, "--local requires exactly one port"),
        (["9000:80"], 9000, "--local requires exactly one port"),
        (["80", "80"], None, "port 80 is specified twice"),
        (["9000:80", "9000:81"], None, "local port 9000 is specified twice"),
    ],
)
def test_what_is_no_port_is_told(texts, local, message):
    with pytest.raises(UsageError) as raised:
        parse_port_forwards(texts, local)
    assert raised.value.message == message
    assert raised.value.hint


def test_without_a_port_there_must_be_a_service():
    service = RunService("jupyter", Endpoint(port=8888, page="/lab?token={token}"), "abc", main=True)
    assert service_ports([service], "lab") == ["8888"]
    with pytest.raises(UsageError, match="no port specified"):
        service_ports([], "lab")
    said = describe_tunnel(OpenTunnel(8888, 9000), "lab", 0, [service])
    assert said == "http://127.0.0.1:9000/lab?token=abc opens jupyter, port 8888 of node 0 of cluster lab"
    assert (
        describe_tunnel(OpenTunnel(22, 9000), "lab", 1) == "127.0.0.1:9000 forwards to port 22 of node 1 of cluster lab"
    )
    assert "abc" not in repr(service)


class Host:
    """A connection that breaks and comes back as the script says; `on_outcome` is what the tunnel was given."""

    def __init__(self, dials=(), probes=()):
        self.node = node(1, private_address="10.0.0.2")
        self.connected, self.dials, self.probes, self.on_outcome = True, list(dials), list(probes), None

    def forward(self, port, *, local, near, on_outcome):
        self.on_outcome, self.asked = on_outcome, (port, local, near)
        return local

    def try_run(self, _command):
        self._next(self.probes)

    def connect(self):
        self._next(self.dials)

    def _next(self, script):
        what = script.pop(0) if script else KeyboardInterrupt
        if what is not None:
            raise what


class Said(list):
    def __call__(self, note):
        self.append(note.text)


def test_a_port_that_nobody_listens_on_is_told_once_and_when_it_answers():
    host, said = Host(), Said()
    assert open_tunnels(host, [PortForward(8888)], said) == (OpenTunnel(8888, 8888),)
    assert host.asked == (8888, 8888, True)
    silent = SilentPortError("no")
    for trouble in (silent, silent, None, None, ConnectError("lost the connection to node 1")):
        host.on_outcome(trouble)
    assert said == [
        "nothing listens on port 8888 of node 1; the tunnel tries again at every connection",
        "port 8888 of node 1 is reachable now",
        "lost the connection to node 1",
    ]


def held(host, *, gone=False):
    said, authorize_caller, clock = Said(), [], ManualClock(START)
    records = SimpleNamespace(cluster=lambda _name: None if gone else LAB)
    error = None
    try:
        keep_connected(host, LAB, records=records, clock=clock, emit=said, authorize_caller=authorize_caller.append)
    except (KeyboardInterrupt, StateError, HostKeyError) as raised:
        error = raised
    return said, authorize_caller, clock.monotonic(), error


def test_a_connection_that_breaks_is_dialled_again_and_who_has_moved_is_let_in():
    lost = ConnectError("lost the connection to node 1")
    said, authorize_caller, _, error = held(Host(probes=[lost], dials=[lost, lost, None]))
    assert isinstance(error, KeyboardInterrupt)
    assert said == ["lost the connection to node 1; reconnecting", "reconnected after 3 s"]
    assert authorize_caller == [LAB]


def test_a_quiet_connection_is_asked_for_a_sign_of_life_now_and_then():
    _, _, seconds, _ = held(Host(probes=[None, None]))
    assert 45 <= seconds <= 50


def test_a_cluster_that_is_gone_ends_its_tunnels():
    said, _, _, error = held(Host(probes=[ConnectError("lost")]), gone=True)
    assert isinstance(error, StateError)
    assert (said, error.message) == (["lost; reconnecting"], "cluster lab has been deleted")


@pytest.mark.parametrize("where", ["probes", "dials"])
def test_a_stranger_in_its_place_ends_them_too(where):
    script = {"probes": [ConnectError("lost")], where: [HostKeyError("another key")]}
    assert isinstance(held(Host(**script))[3], HostKeyError)


def test_a_broken_connection_is_noticed_without_waiting_for_the_next_sign_of_life():
    host = Host(probes=[ConnectError("lost")])
    host.connected = False
    assert held(host)[2] == 1.0
