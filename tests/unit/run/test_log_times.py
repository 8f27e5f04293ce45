"""When output was written: the times of a node's messages, and the local copy of them."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.node.agent.gang.logs import format_entry
from cloudgpu.paths import RunPaths
from cloudgpu.run import log_store
from cloudgpu.run.agent_messages import Chunk, parse_times
from cloudgpu.run.log_store import LogStore

START = datetime(2026, 11, 27, 9, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def ms(seconds: float) -> int:
    return round(at(seconds).timestamp() * 1000)


def chunk(offset: int, text: str, *times: tuple[int, float]) -> Chunk:
    """Return a chunk; each time is a number of bytes of the text and the second by which they were written."""
    return Chunk(0, offset, len(text), text.encode(), tuple((offset + end, ms(seconds)) for end, seconds in times))


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return LogStore(RunPaths(tmp_path))


def shown(store: LogStore, start: int = 0) -> list[tuple[float | None, str]]:
    """Return the lines with their seconds after START."""
    groups = list(store.timed_blocks(0, start))
    assert all(lines for _, lines in groups)
    return [
        (None if written_at is None else (written_at - START).total_seconds(), line)
        for written_at, lines in groups
        for line in lines
    ]


def times_file(store: LogStore) -> Path:
    return store._paths.log_times(0)


MESSAGE = {"rank": 0, "offset": 10, "bytes": 4, "data": "a\nb\n"}


def test_times_of_a_message_are_read():
    read = Chunk.of({**MESSAGE, "times": [[12, ms(0)], [14, ms(0)]]})
    assert read.times == ((12, ms(0)), (14, ms(0)))
    assert list(read.by_time()) == [(at(0), b"a\n"), (at(0), b"b\n")]


@pytest.mark.parametrize(
    "times",
    [
        None,
        {},
        "times",
        7,
        [],
        [[]],
        [[14]],
        [[14, ms(0), 1]],
        [None],
        ["14"],
        [["14", ms(0)]],
        [[14.0, ms(0)]],
        [[14, float("nan")]],
        [[14, True]],
        [[True, ms(0)]],
        [[13, ms(0)]],
        [[15, ms(0)]],
        [[10, ms(0)], [14, ms(0)]],
        [[12, ms(0)], [12, ms(0)], [14, ms(0)]],
        [[13, ms(0)], [12, ms(0)], [14, ms(0)]],
        [[12, ms(1)], [14, ms(0)]],
        [[14, 0]],
        [[14, -1]],
        [[14, ms(0) // 1000]],
        [[14, 4102444800000]],
        [[14, 10**30]],
        [[14, [ms(0)]]],
    ],
    ids=repr,
)
def test_malformed_times_are_unknown_and_the_output_is_still_read(times):
    read = Chunk.of({**MESSAGE, "times": times})
    assert (read.times, read.text) == ((), "a\nb\n")
    assert list(read.by_time()) == [(None, b"a\nb\n")]


def test_number_of_times_is_bounded():
    pairs = [[end, ms(0)] for end in range(1, 5001)]
    assert len(parse_times({"times": pairs[:4096]}, 0, 4096)) == 4096
    assert parse_times({"times": pairs}, 0, 5000) == ()


def test_rest_of_a_chunk_keeps_its_times():
    whole = chunk(100, "one\ntwo\nthree\n", (4, 1), (8, 2), (14, 3))
    assert whole.after(90) is whole
    assert whole.after(104).times == ((108, ms(2)), (114, ms(3)))
    assert list(whole.after(106).by_time()) == [(at(2), b"o\n"), (at(3), b"three\n")]
    assert whole.after(114) is None


def test_line_has_the_time_by_which_its_end_was_written(store):
    store.add(chunk(0, "one\ntw", (4, 1), (6, 2)))
    store.add(chunk(6, "o\nthree\nfour\nun", (1, 3), (2, 4), (8, 5), (13, 6), (15, 7)))
    assert shown(store) == [(1, "one"), (4, "two"), (5, "three"), (6, "four"), (7, "un")]
    assert shown(store, 4) == [(4, "two"), (5, "three"), (6, "four"), (7, "un")]


def test_repeated_chunk_adds_its_new_times_only(store):
    store.add(chunk(0, "one\ntwo\n", (4, 1), (8, 2)))
    again = chunk(0, "one\ntwo\nthree\n", (4, 1), (8, 2), (14, 3))
    assert store.add(again)
    assert not store.add(again)
    assert times_file(store).stat().st_size == 3 * 31
    assert shown(store) == [(1, "one"), (2, "two"), (3, "three")]


def test_bytes_without_times_are_unknown_between_bytes_with_times(store):
    store.add(chunk(0, "old\n"))
    assert not times_file(store).exists()
    assert shown(store) == [(None, "old")]
    store.add(chunk(4, "one\n", (4, 1)))
    store.add(chunk(8, "older client\n"))
    store.add(chunk(21, "two\n", (4, 2)))
    assert shown(store) == [(None, "old"), (1, "one"), (None, "older client"), (2, "two")]


def test_times_that_decrease_between_messages_do_not_decrease_in_the_copy(store):
    store.add(chunk(0, "one\n", (4, 5)))
    store.add(chunk(4, "two\n", (4, 3)))
    assert shown(store) == [(5, "one"), (5, "two")]


FIRST = format_entry(4, ms(1))


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (None, [None, None, 3]),
        (b"", [None, None, 3]),
        (FIRST, [1, None, 3]),
        (FIRST + format_entry(8, ms(2))[:-1], [1, None, 3]),
        (FIRST + b"x" * 31, [None, None, 3]),
        (b"\0" * 62, [None, None, 3]),
        (b"x" * 31 + format_entry(8, ms(2)), [None, None, None]),
        (format_entry(4, 1) + format_entry(8, ms(2)), [None, 2, 3]),
        (FIRST + format_entry(99, ms(2)), [None, None, 3]),
    ],
    ids=["missing", "empty", "shorter", "cut", "garbage", "zeros", "first", "1970", "beyond the log"],
)
def test_damaged_times_file_is_unknown_and_does_not_affect_later_times(store, content, lines):
    store.add(chunk(0, "one\ntwo\n", (4, 1), (8, 2)))
    times_file(store).unlink()
    if content is not None:
        times_file(store).write_bytes(content)
    for seconds, _ in shown(store):
        assert seconds in (None, 1, 2)
    store.start_since(0, at(2))
    store.add(chunk(8, "three\n", (6, 3)))
    assert [seconds for seconds, _ in shown(store)] == lines


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_times_file_that_cannot_be_used_is_unknown(store, kind):
    path = times_file(store)
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "device": lambda: path.symlink_to("/dev/full")}[kind]()
    assert store.add(chunk(0, "one\n", (4, 1)))
    assert shown(store) == [(None, "one")]
    assert store.start_since(0, at(0)) is None


def test_times_of_a_deleted_log_are_not_taken_for_those_of_its_new_copy(store):
    store.add(chunk(0, "one\ntwo\n", (4, 1), (8, 2)))
    store._paths.log(0).unlink()
    store.add(chunk(0, "one\n"))
    store.add(chunk(4, "two\n", (4, 2)))
    assert shown(store) == [(None, "one"), (2, "two")]


def test_start_since_a_time(store):
    store.add(chunk(0, "one\ntwo\nthr", (4, 1), (8, 2), (11, 3.5)))
    assert [store.start_since(0, at(seconds)) for seconds in (-9, 1, 1.001, 2, 2.5, 3.5, 3.501)] == [
        0,
        0,
        4,
        4,
        8,
        8,
        11,
    ]
    store.add(chunk(11, "ee\n", (3, 5)))
    assert [store.start_since(0, at(seconds)) for seconds in (3.5, 4, 5, 6)] == [8, 8, 8, 14]
    assert store.start_since(1, at(0)) == 0  # a rank that has printed nothing


def test_start_is_unknown_if_the_line_at_that_time_is(store):
    store.add(chunk(0, "old\n"))
    assert store.start_since(0, at(0)) is None
    store.add(chunk(4, "one\n", (4, 1)))
    store.add(chunk(8, "gap\n"))
    assert [store.start_since(0, at(seconds)) for seconds in (0, 1, 2)] == [None, None, None]
    store.add(chunk(12, "two\nthree\n", (4, 2), (10, 3)))
    assert [store.start_since(0, at(seconds)) for seconds in (0, 1, 1.5, 2, 2.5, 3, 4)] == [
        None,
        None,
        None,
        None,
        16,
        16,
        22,
    ]


PIECES = st.lists(st.tuples(st.text("ab\n", min_size=1, max_size=6), st.integers(0, 3)), min_size=1, max_size=12)


@given(pieces=PIECES, cuts=st.sets(st.integers(1, 60)), since=st.integers(-1, 30), tail=st.integers(0, 5))
def test_lines_since_a_time_are_those_whose_end_was_written_then(tmp_path_factory, pieces, cuts, since, tail):
    raw, entries, now = "", [], 0
    for text, seconds in pieces:
        raw, now = raw + text, now + seconds
        entries.append((len(raw), now))
    store = LogStore(RunPaths(tmp_path_factory.mktemp("run")))
    begin = 0
    for end in [*sorted(cut for cut in cuts if cut < len(raw)), len(raw)]:
        times = [(min(last, end) - begin, seconds) for last, seconds in entries if last > begin]
        count = next(number for number, (last, _) in enumerate(times, 1) if last == end - begin)
        store.add(chunk(begin, raw[begin:end], *times[:count]))
        begin = end
    written = [next(seconds for last, seconds in entries if last > position) for position in range(len(raw))]
    expected, position = [], 0
    for line in raw.splitlines(keepends=True):
        position += len(line)
        expected.append((written[position - 1], line.rstrip("\n")))
    original, log_store._LONGEST_LINE_BYTES = log_store._LONGEST_LINE_BYTES, 7
    try:
        start = store.start_since(0, at(since))
        last = store.start_of_last(0, tail)
    finally:
        log_store._LONGEST_LINE_BYTES = original
    assert shown(store) == expected
    assert shown(store, start) == [line for line in expected if line[0] >= since]
    recent = [line for line in expected if line[0] >= since]
    assert shown(store, max(start, last)) == (recent[-tail:] if tail else [])


@given(
    content=st.binary(max_size=100)
    | st.lists(st.builds(format_entry, st.integers(0, 30), st.integers(0, 2))).map(b"".join),
    since=st.integers(0, 9),
)
def test_any_times_file_is_read_and_extended(tmp_path_factory, content, since):
    store = LogStore(RunPaths(tmp_path_factory.mktemp("run")))
    store.add(chunk(0, "one\ntwo\n"))
    times_file(store).write_bytes(content)
    assert [line for _, line in shown(store)] == ["one", "two"]
    assert store.start_since(0, at(since)) in (None, 0, 4, 8)
    assert store.add(chunk(8, "three\n", (6, 3)))
    assert [line for _, line in shown(store)] == ["one", "two", "three"]
