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


def test_both_ends_know_each_other() -> None:
    head, worker = greeted(node=2)
    assert (head.ready, worker.ready, head.peer, worker.peer) == (True, True, 2, 0)
    worker.send({"a": 1})
    head.send({"b": 2})
    assert head.feed(take(worker)) == [{"a": 1}]
    assert worker.feed(take(head)) == [{"b": 2}]


@pytest.mark.parametrize("wrong", [{"token": "x" * 32}, {"run": "another"}, {"node": 3}, {"node": 0}, {"node": -1}])
def test_a_stranger_is_refused(wrong: dict) -> None:
    with pytest.raises(ProtocolError):
        greeted(**wrong)


def test_the_head_must_prove_itself_too() -> None:
    worker = WorkerProtocol(TOKEN, "r", 1)
    worker.feed(b'{"nonce": "aa"}\n')
    with pytest.raises(ProtocolError):
        worker.feed(b'{"proof": "' + b"0" * 64 + b'"}\n')


def test_a_workers_proof_is_no_heads_proof() -> None:
    worker = WorkerProtocol(TOKEN, "r", 1)
    worker.feed(b'{"nonce": "aa"}\n')
    reflected = json.dumps({"proof": json.loads(take(worker))["proof"]}).encode() + b"\n"
    with pytest.raises(ProtocolError):
        worker.feed(reflected)


def test_a_recorded_conversation_proves_nothing() -> None:
    head, worker = HeadProtocol(TOKEN, "r", 3), WorkerProtocol(TOKEN, "r", 1)
    worker.feed(take(head))
    recorded = take(worker)
    with pytest.raises(ProtocolError):
        HeadProtocol(TOKEN, "r", 3).feed(recorded)


@pytest.mark.parametrize("crime", ["repeat", "drop", "flip", "reflect"])
def test_frames_cannot_be_forged(crime: str) -> None:
    head, worker = greeted()
    worker.send({"n": 1})
    first = take(worker)
    worker.send({"n": 2})
    second = take(worker)
    data = {"repeat": first + first, "drop": second, "flip": first.replace(b"1}", b"9}"), "reflect": first}[crime]
    with pytest.raises(ProtocolError):
        (worker if crime == "reflect" else head).feed(data)


def test_the_token_is_never_sent() -> None:
    head, worker = HeadProtocol(TOKEN, "r", 2), WorkerProtocol(TOKEN, "r", 1)
    said = take(head)
    worker.feed(said)
    answer = take(worker)
    head.feed(answer)
    assert TOKEN.encode() not in said + answer + take(head)


def test_nothing_is_sent_before_the_greeting() -> None:
    with pytest.raises(ProtocolError):
        WorkerProtocol(TOKEN, "r", 1).send({})


@given(st.binary(max_size=3000))
def test_rubbish_ends_in_a_wire_error_or_waits(data: bytes) -> None:
    for wire in (HeadProtocol(TOKEN, "r", 2), WorkerProtocol(TOKEN, "r", 1)):
        try:
            messages = wire.feed(data)
        except ProtocolError:
            continue
        assert messages == []
        assert not wire.ready


@pytest.mark.parametrize("line", [b"[" * 1000 + b"\n", b"{" + b" " * 2000, b"null\n", b'{"node": true}\n'])
def test_hostile_greetings(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        HeadProtocol(TOKEN, "r", 2).feed(line)


@given(st.lists(st.integers(0, 5), max_size=20), st.data())
def test_any_cut_of_the_stream_gives_the_same_messages(numbers: list[int], data) -> None:
    head, worker = greeted()
    for number in numbers:
        worker.send({"n": number})
    stream, got = take(worker), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += head.feed(stream[:size])
        stream = stream[size:]
    assert got == [{"n": number} for number in numbers]
