"""A rejected login or host key is retried only while the node may still be booting for the first time."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import paramiko
import pytest

from cloudgpu.errors import ConnectError, HostKeyError, SshSetupError
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.ssh import fanout, handshake
from cloudgpu.ssh.connection import ProhibitedForwardingError
from cloudgpu.ssh.fanout import all_or_raise, wait_for_all, wait_for_ssh
from cloudgpu.ssh.handshake import AuthRefusedError, LoginKey, open_link
from tests.manual_clock import ManualClock

NODE = Node(
    0, "i-0", "127.0.0.1", 22, "ubuntu", ("SHA256:x",), "127.0.0.1", "p3.2xlarge", "us-east-1a", "V100", 1, True
)
KEY = Path("key")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 11, 22, tzinfo=UTC))


def answer(monkeypatch: pytest.MonkeyPatch, errors: dict[int, ConnectError]) -> dict[int, int]:
    """Make connecting to each node fail with its error, and return the number of attempts per node."""
    tries: dict[int, int] = {}

    def connect(node: Node, _key: Path, **_more: object) -> None:
        tries[node.index] = tries.get(node.index, 0) + 1
        raise errors[node.index]

    monkeypatch.setattr(fanout, "connect", connect)
    return tries


def test_booting_node_is_retried_for_a_minute_after_login_rejection(monkeypatch, clock):
    tries = answer(monkeypatch, {0: AuthRefusedError("refused the key")})
    with pytest.raises(AuthRefusedError):
        wait_for_ssh(NODE, KEY, clock=clock, deadline_s=600)
    assert tries[0] > 10
    assert 60 <= clock.monotonic() < 70


def test_booted_node_is_not_retried_after_login_rejection(monkeypatch, clock):
    tries = answer(monkeypatch, {0: AuthRefusedError("refused the key")})
    with pytest.raises(AuthRefusedError):
        wait_for_ssh(replace(NODE, booted=True), KEY, clock=clock, deadline_s=600)
    assert tries == {0: 1}
    assert clock.monotonic() == 0


@pytest.mark.parametrize(
    "sandbox",
    [
        HostKeyError("not the host"),
        AuthRefusedError("refused the key"),
        SshSetupError("the key is missing"),
        ProhibitedForwardingError("forwarding is prohibited"),
    ],
)
def test_rejection_by_any_node_ends_the_wait_for_all_nodes(monkeypatch, clock, sandbox):
    answer(monkeypatch, {0: ConnectError("silent"), 1: sandbox})
    nodes = [replace(NODE, booted=True), replace(NODE, index=1, booted=True)]
    outcomes = wait_for_all(nodes, KEY, clock=clock, deadline_s=100_000)
    with pytest.raises(type(sandbox), match=sandbox.message):
        all_or_raise(outcomes)
    assert clock.monotonic() < 100_000


class Login:
    """A link whose login has a given outcome."""

    hung_up = False

    def __init__(self, outcome: object) -> None:
        self.outcome = outcome

    def auth_publickey(self, _user: str, _key: object) -> object:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def is_authenticated(self) -> bool:
        return self.outcome == []

    def hang_up(self) -> None:
        self.hung_up = True


@pytest.mark.parametrize(
    ("outcome", "kind", "text"),
    [
        (paramiko.AuthenticationException("Authentication failed."), AuthRefusedError, "refused the key"),
        (paramiko.BadAuthenticationType("Bad", ["password"]), AuthRefusedError, "refused the key"),
        (["password"], AuthRefusedError, "also requires password"),
        (
            paramiko.AuthenticationException("Authentication timeout."),
            ConnectError,
            "did not complete the SSH handshake",
        ),
        (
            paramiko.AuthenticationException("Authentication failed: transport shut down or saw EOF"),
            ConnectError,
            "closed the connection during login",
        ),
        (EOFError(), ConnectError, "closed the connection during login"),
    ],
)
def test_rejected_login_is_distinguished_from_an_unresponsive_server(monkeypatch, clock, outcome, kind, text):
    login = Login(outcome)
    monkeypatch.setattr(handshake, "load_login_key", lambda *_: LoginKey((None,)))
    monkeypatch.setattr(handshake, "_verified_link", lambda *_: login)
    with pytest.raises(ConnectError, match=text) as caught:
        open_link(NODE, KEY, clock=clock, timeout_s=1, connect=lambda _s: None)
    assert type(caught.value) is kind
    assert login.hung_up


def test_booted_flag_is_not_stored_in_the_inventory():
    stored = Inventory("lab", (replace(NODE, booted=True),)).as_json()
    assert "booted" not in stored["nodes"][0]
    assert Inventory.from_json(stored).nodes == (NODE,)
