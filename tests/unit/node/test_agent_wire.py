import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.node.agent.gang.protocol import HeadProtocol, ProtocolError, WorkerProtocol

TOKEN = "t" * 32


def take(wire) -> bytes:
    data = bytes(wire.out)
    wire.out.clear()
    return data


def greeted(token: str = TOKEN, run: str = "r", node: int = 1, nodes: int = 3):
    head, worker = HeadProtocol(TOKEN, "r", nodes), WorkerProtocol(token, run, node)
    worker.feed(take(head))
    head.feed(take(worker))
    worker.feed(take(head))
    return head, worker


def test_head_and_worker_authenticate_and_exchange_messages() -> None:
    head, worker = greeted(node=2)
    assert (head.ready, worker.ready, head.peer, worker.peer) == (True, True, 2, 0)
    worker.send({"a": 1})
    head.send({"b": 2})
    assert head.feed(take(worker)) == [{"a": 1}]
    assert worker.feed(take(head)) == [{"b": 2}]


@pytest.mark.parametrize("wrong", [{"token": "x" * 32}, {"run": "another"}, {"node": 3}, {"node": 0}, {"node": -1}])
def test_worker_with_wrong_credentials_is_rejected(wrong: dict) -> None:
    with pytest.raises(ProtocolError):
        greeted(**wrong)


def test_worker_rejects_a_head_with_invalid_proof() -> None:
    worker = WorkerProtocol(TOKEN, "r", 1)
    worker.feed(b'{"nonce": "aa"}\n')
    with pytest.raises(ProtocolError):
        worker.feed(b'{"proof": "' + b"0" * 64 + b'"}\n')


def test_worker_rejects_its_own_reflected_proof() -> None:
    worker = WorkerProtocol(TOKEN, "r", 1)
    worker.feed(b'{"nonce": "aa"}\n')
    reflected = json.dumps({"proof": json.loads(take(worker))["proof"]}).encode() + b"\n"
    with pytest.raises(ProtocolError):
        worker.feed(reflected)


def test_replayed_worker_proof_is_rejected() -> None:
    head, worker = HeadProtocol(TOKEN, "r", 3), WorkerProtocol(TOKEN, "r", 1)
    worker.feed(take(head))
    recorded = take(worker)
    with pytest.raises(ProtocolError):
        HeadProtocol(TOKEN, "r", 3).feed(recorded)


@pytest.mark.parametrize("crime", ["repeat", "drop", "flip", "reflect"])
def test_replayed_dropped_altered_and_reflected_frames_are_rejected(crime: str) -> None:
    head, worker = greeted()
    worker.send({"n": 1})
    first = take(worker)
    worker.send({"n": 2})
    second = take(worker)
    data = {"repeat": first + first, "drop": second, "flip": first.replace(b"1}", b"9}"), "reflect": first}[crime]
    with pytest.raises(ProtocolError):
        (worker if crime == "reflect" else head).feed(data)


def test_gang_token_is_never_sent() -> None:
    head, worker = HeadProtocol(TOKEN, "r", 2), WorkerProtocol(TOKEN, "r", 1)
    said = take(head)
    worker.feed(said)
    answer = take(worker)
    head.feed(answer)
    assert TOKEN.encode() not in said + answer + take(head)


def test_sending_before_the_handshake_is_rejected() -> None:
    with pytest.raises(ProtocolError):
        WorkerProtocol(TOKEN, "r", 1).send({})


@given(st.binary(max_size=3000))
def test_random_bytes_never_complete_the_handshake(data: bytes) -> None:
    for wire in (HeadProtocol(TOKEN, "r", 2), WorkerProtocol(TOKEN, "r", 1)):
        try:
            messages = wire.feed(data)
        except ProtocolError:
            continue
        assert messages == []
        assert not wire.ready


@pytest.mark.parametrize("line", [b"[" * 1000 + b"\n", b"{" + b" " * 2000, b"null\n", b'{"node": true}\n'])
def test_hostile_handshake_line_is_rejected(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        HeadProtocol(TOKEN, "r", 2).feed(line)


@given(st.lists(st.integers(0, 5), max_size=20), st.data())
def test_messages_survive_any_split_of_the_stream(numbers: list[int], data) -> None:
    head, worker = greeted()
    for number in numbers:
        worker.send({"n": number})
    stream, got = take(worker), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += head.feed(stream[:size])
        stream = stream[size:]
    assert got == [{"n": number} for number in numbers]
