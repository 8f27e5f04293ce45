"""A refused login or a wrong host key is an answer: it is retried only while a first boot may explain it."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import paramiko
import pytest

from cloudgpu.clock import ManualClock
from cloudgpu.errors import ConnectError, HostKeyError
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.ssh import connection, handshake
from cloudgpu.ssh.connection import wait_for_ssh
from cloudgpu.ssh.fanout import all_or_raise, wait_for_all
from cloudgpu.ssh.handshake import AuthRefusedError, open_link

NODE = Node(
    0, "i-0", "127.0.0.1", 22, "ubuntu", ("SHA256:x",), "127.0.0.1", "p3.2xlarge", "us-east-1a", "V100", 1, True
)
KEY = Path("key")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 11, 22, tzinfo=UTC))


def answer(monkeypatch: pytest.MonkeyPatch, errors: dict[int, ConnectError]) -> dict[int, int]:
    """Let every dialled node fail with its error; returns how often each was dialled."""
    tries: dict[int, int] = {}

    def connect(node: Node, _key: Path, **_more: object) -> None:
        tries[node.index] = tries.get(node.index, 0) + 1
        raise errors[node.index]

    monkeypatch.setattr(connection, "connect", connect)
    return tries


def test_a_node_that_boots_is_asked_again_for_a_minute(monkeypatch, clock):
    tries = answer(monkeypatch, {0: AuthRefusedError("refused the key")})
    with pytest.raises(AuthRefusedError):
        wait_for_ssh(NODE, KEY, clock=clock, deadline_s=600)
    assert tries[0] > 10
    assert 60 <= clock.monotonic() < 70


def test_a_node_that_has_booted_is_asked_once(monkeypatch, clock):
    tries = answer(monkeypatch, {0: AuthRefusedError("refused the key")})
    with pytest.raises(AuthRefusedError):
        wait_for_ssh(replace(NODE, booted=True), KEY, clock=clock, deadline_s=600)
    assert tries == {0: 1}
    assert clock.monotonic() == 0


@pytest.mark.parametrize("sandbox", [HostKeyError("not the host"), AuthRefusedError("refused the key")])
def test_one_answer_ends_the_wait_for_the_other_nodes(monkeypatch, clock, sandbox):
    answer(monkeypatch, {0: ConnectError("silent"), 1: sandbox})
    nodes = [replace(NODE, booted=True), replace(NODE, index=1, booted=True)]
    outcomes = wait_for_all(nodes, KEY, clock=clock, deadline_s=100_000)
    with pytest.raises(type(sandbox), match=sandbox.message):
        all_or_raise(outcomes)
    assert clock.monotonic() < 100_000


class Login:
    """A link whose login ends as a test wants."""

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
def test_a_refusal_is_told_from_a_server_that_did_not_answer(monkeypatch, clock, outcome, kind, text):
    login = Login(outcome)
    monkeypatch.setattr(handshake, "_load", lambda _key: None)
    monkeypatch.setattr(handshake, "_verified_link", lambda *_: login)
    with pytest.raises(ConnectError, match=text) as caught:
        open_link(NODE, KEY, clock=clock, timeout_s=1, connect=lambda _s: None)
    assert type(caught.value) is kind
    assert login.hung_up


def test_that_a_node_has_booted_is_never_stored():
    stored = Inventory("lab", (replace(NODE, booted=True),)).as_json()
    assert "booted" not in stored["nodes"][0]
    assert Inventory.from_json(stored).nodes == (NODE,)
