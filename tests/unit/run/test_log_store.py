"""The local copy of the logs equals the original byte for byte, even if chunks are repeated."""

from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.paths import RunPaths
from cloudgpu.run import log_store
from cloudgpu.run.agent_messages import Chunk, Verdict
from cloudgpu.run.log_store import LogStore


def chunks(raw: bytes, size: int) -> list[Chunk]:
    parts = [(at, raw[at : at + size]) for at in range(0, len(raw), size)]
    return [Chunk(0, at, len(part), part) for at, part in parts]


@given(raw=st.binary(max_size=300), size=st.integers(1, 40), again=st.integers(0, 10))
def test_local_log_is_identical_after_repeated_chunks(tmp_path_factory, raw, size, again):
    store = LogStore(RunPaths(tmp_path_factory.mktemp("run")))
    sent = chunks(raw, size)
    for chunk in [*sent[:again], *sent]:
        store.add(chunk)
    path = store._paths.log(0)
    assert (path.read_bytes() if path.exists() else b"") == raw
    assert store.offset(0) == len(raw)


def test_repeated_chunk_is_not_reported_as_new(tmp_path):
    store = LogStore(RunPaths(tmp_path))
    chunk = Chunk(1, 0, 6, b"hello\n")
    assert store.add(chunk)
    assert not store.add(chunk)
    assert list(store.blocks(1)) == [("hello",)]
    assert store.tail(1) == ["hello"]


@given(raw=st.text("ab\n", max_size=60), count=st.integers(0, 8), block=st.integers(1, 20))
def test_last_lines_are_read_once_whatever_the_size_of_a_block(tmp_path_factory, raw, count, block):
    store = LogStore(RunPaths(tmp_path_factory.mktemp("run")))
    if raw:
        store.add(Chunk(0, 0, len(raw), raw.encode()))
    original, log_store._LONGEST_LINE_BYTES = log_store._LONGEST_LINE_BYTES, block
    try:
        start = store.start_of_last(0, count)
        read = [line for lines in store.blocks(0, start) for line in lines]
    finally:
        log_store._LONGEST_LINE_BYTES = original
    lines = raw.splitlines()[-count:] if count else []
    assert raw[start:].splitlines() == lines
    assert "".join(read) == "".join(lines)
    if block > max(map(len, lines), default=0):
        assert read == lines  # longer lines are read in parts, to limit memory use


def test_unknown_verdict_state_is_not_a_success():
    assert not Verdict.of({"state": "perhaps"}).succeeded
    first = {"rank": 2, "exit_code": 3, "node_index": 1, "reason": "exited with 3"}
    verdict = Verdict.of({"state": "failed", "first_failure": first})
    assert (verdict.rank, verdict.node, verdict.exit_code) == (2, 1, 3)
