"""The caller's copy of the logs is the original, byte for byte, whatever is sent twice."""

from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.paths import RunPaths
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.verdict import Chunk, Verdict


def chunks(raw: bytes, size: int) -> list[Chunk]:
    parts = [(at, raw[at : at + size]) for at in range(0, len(raw), size)]
    return [Chunk(0, at, len(part), part.decode("utf-8", "surrogateescape")) for at, part in parts]


@given(raw=st.binary(max_size=300), size=st.integers(1, 40), again=st.integers(0, 10))
def test_the_copy_is_the_log_and_nothing_is_written_twice(tmp_path_factory, raw, size, again):
    store = LogStore(RunPaths(tmp_path_factory.mktemp("run")))
    sent = chunks(raw, size)
    for chunk in [*sent[:again], *sent]:
        store.add(chunk)
    path = store._paths.log(0)
    assert (path.read_bytes() if path.exists() else b"") == raw
    assert store.offset(0) == len(raw)


def test_a_repeated_chunk_is_not_news(tmp_path):
    store = LogStore(RunPaths(tmp_path))
    chunk = Chunk(1, 0, 6, "hello\n")
    assert store.add(chunk)
    assert not store.add(chunk)
    assert list(store.lines(1)) == ["hello"]
    assert store.tail(1) == ["hello"]


def test_an_unknown_state_is_never_a_success():
    assert not Verdict.of({"state": "perhaps"}).succeeded
    first = {"rank": 2, "exit_code": 3, "node_index": 1, "reason": "exited with 3"}
    verdict = Verdict.of({"state": "failed", "first_failure": first})
    assert (verdict.rank, verdict.node, verdict.exit_code) == (2, 1, 3)
