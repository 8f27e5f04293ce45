"""When output was written: what the supervisor records, and what `follow` sends of it."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.node.agent.gang import logs
from cloudgpu.node.agent.gang.logs import LogReader, LogTimes, TimesReader, format_entry, line_times


class Watched:
    """A log whose bytes are written at given UTC seconds, and its times file."""

    def __init__(self, folder: Path) -> None:
        self.log, self.times = folder / "rank-0.log", folder / "rank-0.times"
        self.supervisor = LogTimes([str(self.log)])

    def write(self, data: bytes, at: float) -> None:
        with self.log.open("ab") as stream:
            stream.write(data)
        os.utime(self.log, (at, at))

    def entries(self) -> list[tuple[int, int]]:
        with self.times.open("rb") as stream:
            return [entry[:2] for entry in TimesReader(stream.fileno()).entries()]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_growth_is_recorded_with_the_time_of_the_last_byte_at_most_once_a_second(watched: Watched) -> None:
    watched.supervisor.record(50.0)
    assert watched.entries() == []
    watched.write(b"one\n", 1000.25)
    watched.supervisor.record(50.2)
    watched.supervisor.record(50.4)
    watched.write(b"two\n", 1000.5)
    watched.supervisor.record(50.8)
    watched.write(b"three\n", 1001.0)
    assert watched.entries() == [(4, 1_000_250)]
    watched.supervisor.record(51.2)
    watched.supervisor.record(90.0)
    watched.write(b"four\n", 1040.125)
    watched.supervisor.record(90.2)
    watched.write(b"end", 1040.25)
    watched.supervisor.record(90.4)
    assert watched.entries() == [(4, 1_000_250), (14, 1_001_000), (19, 1_040_125)]
    watched.supervisor.record(90.4, last=True)
    watched.supervisor.record(90.4, last=True)
    assert watched.entries()[3:] == [(22, 1_040_250)]


def test_times_never_decrease_when_the_clock_is_set_back(watched: Watched) -> None:
    watched.write(b"one\n", 2000.0)
    watched.supervisor.record(1.0)
    watched.write(b"two\n", 1500.0)
    watched.supervisor.record(3.0)
    assert watched.entries() == [(4, 2_000_000), (8, 2_000_000)]


@pytest.mark.parametrize("written", [0, 7], ids=["nothing", "part of an entry"])
def test_full_disk_leaves_a_log_without_times(watched: Watched, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    watched.write(b"one\n", 1000.0)
    watched.supervisor.record(1.0)
    original = os.write

    def full(handle: int, data: bytes) -> int:
        if not written:
            raise OSError(errno.ENOSPC, "no space left on device")
        return original(handle, data[:written])

    monkeypatch.setattr(logs.os, "write", full)
    watched.write(b"two\n", 1001.0)
    watched.supervisor.record(3.0)
    monkeypatch.undo()
    watched.write(b"three\n", 1010.0)
    watched.supervisor.record(13.0, last=True)
    assert not watched.times.exists()
    assert LogReader(str(watched.log), 0, 0).next(whole=True) == {
        "rank": 0,
        "offset": 0,
        "bytes": 14,
        "data": "one\ntwo\nthree\n",
    }


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_file_that_cannot_be_written_leaves_a_log_without_times(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "rank-0.times", tmp_path / "target"
    target.write_bytes(b"")
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to(target)}[kind]()
    watched = Watched(tmp_path)
    watched.write(b"one\n", 1000.0)
    watched.supervisor.record(1.0, last=True)
    assert "times" not in LogReader(str(watched.log), 0, 0).next(whole=True)
    assert target.read_bytes() == b""


def test_removed_times_file_is_not_begun_again_in_the_middle(watched: Watched) -> None:
    watched.write(b"one\n", 1000.0)
    watched.supervisor.record(1.0)
    watched.times.unlink()
    watched.write(b"two\n", 5000.0)
    watched.supervisor.record(3.0)
    assert not watched.times.exists()


def test_follow_sends_recorded_times_and_the_time_of_bytes_not_recorded_yet(watched: Watched) -> None:
    reader = LogReader(str(watched.log), 0, 0)
    watched.write(b"one\n", 1000.0)
    assert reader.next(whole=True)["times"] == [[4, 1_000_000]]
    watched.supervisor.record(1.0)
    watched.write(b"two\n", 1000.5)
    assert reader.next(whole=True)["times"] == [[8, 1_000_500]]
    watched.write(b"three\n", 1003.0)
    watched.supervisor.record(4.0)
    watched.write(b"four\nun", 1004.0)
    resumed = LogReader(str(watched.log), 0, 6)
    assert resumed.next(whole=True)["times"] == [[14, 1_003_000], [19, 1_004_000]]
    assert resumed.next(whole=False)["times"] == [[21, 1_004_000]]
    assert LogReader(str(watched.log), 0, 0).next(whole=False)["times"] == [
        [4, 1_000_000],
        [14, 1_003_000],
        [19, 1_004_000],
    ]


def test_run_of_an_earlier_version_has_no_times(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"one\n")
    assert LogReader(str(log), 0, 0).next(whole=True) == {"rank": 0, "offset": 0, "bytes": 4, "data": "one\n"}


@pytest.mark.parametrize(
    "content",
    [b"x" * 31, format_entry(4, 5) + b"x" * 31, format_entry(4, 5) * 2, format_entry(9, 5) + format_entry(4, 6)],
    ids=["no entry", "second entry", "repeated", "decreasing"],
)
def test_damaged_times_file_is_unknown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank-0.times").write_bytes(content)
    assert line_times(str(tmp_path / "rank-0.log"), 0, b"one\ntwo\nthree\n", 7, 100) == (14, [])


def test_incomplete_entry_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "rank-0.times").write_bytes(format_entry(4, 5000) + format_entry(8, 6000)[:-1])
    assert line_times(str(tmp_path / "rank-0.log"), 0, b"one\ntwo\n", 7000, 100) == (8, [[4, 5000], [8, 7000]])


def test_message_with_too_many_times_is_shortened_to_whole_lines(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_MOST_TIMES", 3)
    for number in range(7):
        watched.write(b"a progress bar\r", 1000.0 + 2 * number)
        watched.supervisor.record(2.0 * number)
        watched.write(b"line\n", 1001.0 + 2 * number)
        watched.supervisor.record(2.0 * number + 1)
    reader, sizes, times = LogReader(str(watched.log), 0, 0), [], []
    while (message := reader.next(whole=True)) is not None:
        sizes.append(message["bytes"])
        times += message["times"]
    assert sizes == [60, 60, 20]
    assert times == [[20 * number, 999_000 + 2000 * number] for number in range(1, 8)]


EVENTS = st.lists(
    st.tuples(st.sampled_from([b"a", b"ab\n", b"\n", b"\n\n", b"x\ry"]), st.integers(0, 3)), min_size=1, max_size=25
)


@given(EVENTS, st.integers(0, 40), st.integers(1, 4), st.integers(3, 50))
def test_every_line_has_a_time_from_when_it_was_written(tmp_path_factory, events, offset, most, batch) -> None:
    watched = Watched(tmp_path_factory.mktemp("log"))
    now, written = 1000, []
    for data, seconds in events:
        for _ in range(seconds):
            now += 1
            watched.supervisor.record(now)
        watched.write(data, now)
        watched.supervisor.record(now)
        written += [now * 1000] * len(data)
    content = watched.log.read_bytes()
    original, (logs._MOST_TIMES, logs._BATCH_BYTES) = (logs._MOST_TIMES, logs._BATCH_BYTES), (most, batch)
    try:
        reader, at = LogReader(str(watched.log), 0, offset), offset
        while (message := reader.next(whole=False)) is not None:
            assert message["offset"] == at
            assert 0 < len(message["times"]) <= most
            for end, milliseconds in message["times"]:
                assert at < end
                last = content.rfind(b"\n", at, end)
                if last >= 0:
                    assert written[last] <= milliseconds <= written[last] + 1000
                at = end
            assert at == message["offset"] + message["bytes"]
        assert at == max(offset, len(content))
    finally:
        logs._MOST_TIMES, logs._BATCH_BYTES = original
