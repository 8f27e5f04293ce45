import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.node.agent import proc
from cloudgpu.node.agent.gang import logs
from cloudgpu.node.agent.gang.logs import LogReader
from cloudgpu.node.agent.instance_metadata import SpotNotice
from cloudgpu.run.agent_messages import Chunk
from tests.bad_http.server import http_response, raw_server

TEXT = st.lists(st.sampled_from([b"a", b"\n", "ä".encode(), "€".encode(), "😀".encode(), b"\xff", b"\r"]), max_size=60)


def drain(reader: LogReader, *, whole: bool) -> list[dict]:
    found = []
    while (message := reader.next(whole=whole)) is not None:
        found.append(message)
    return found


@given(TEXT, st.lists(st.integers(0, 60), max_size=6), st.integers(8, 40))
def test_follow_delivers_each_log_byte_once(tmp_path_factory, pieces, cuts, batch) -> None:
    path = tmp_path_factory.mktemp("log") / "rank-0.log"
    content, written, offset, got = b"".join(pieces), 0, 0, []
    reader = LogReader(str(path), 0, 0)
    original = logs._BATCH_BYTES, logs._USUAL_BYTES
    logs._BATCH_BYTES, logs._USUAL_BYTES = batch, batch // 2
    try:
        for cut in sorted(min(cut, len(content)) for cut in cuts):
            with path.open("ab") as stream:
                stream.write(content[written:cut])
            written = cut
            got += drain(reader, whole=True)
            # A follower that lost its connection resumes at its last offset.
            offset = sum(message["bytes"] for message in got)
            reader = LogReader(str(path), 0, offset)
        with path.open("ab") as stream:
            stream.write(content[written:])
        got += drain(reader, whole=False)
    finally:
        logs._BATCH_BYTES, logs._USUAL_BYTES = original
    position = 0
    for message in got:
        assert message["offset"] == position
        raw = content[position : position + message["bytes"]]
        assert message["data"] == raw.decode("utf-8", "surrogateescape")
        position += message["bytes"]
    assert position == len(content)
    if b"\xff" not in content:
        assert "".join(message["data"] for message in got) == content.decode()


def test_incomplete_line_is_held_until_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    reader = LogReader(str(path), 3, 0)
    assert reader.next(whole=True) == {"rank": 3, "offset": 0, "bytes": 4, "data": "one\n"}
    assert reader.next(whole=True) is None
    with path.open("ab") as stream:
        stream.write(b"o\n")
    assert reader.next(whole=True) == {"rank": 3, "offset": 4, "bytes": 4, "data": "two\n"}


def test_line_over_one_mebibyte_is_split_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "log"
    line = "ä€".encode() * 500_000 + b"\n"
    path.write_bytes(line)
    got = drain(LogReader(str(path), 0, 0), whole=True)
    assert len(got) == 3
    assert max(message["bytes"] for message in got) <= 1 << 20
    assert "".join(Chunk.of(message).text for message in got).encode() == line


def test_missing_log_file_yields_no_messages(tmp_path: Path) -> None:
    assert LogReader(str(tmp_path / "log"), 0, 0).next(whole=False) is None


class EndingCaller(logs.Caller):
    """Keeps how long `follow` waits, and ends the run at the first time that it waits at all."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.waits: list[float] = []
        self._end = end

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        if seconds:
            self._end()


def save_status(folder: Path, state: str) -> None:
    agent = {"pid": os.getpid(), "started": proc.start_mark(os.getpid()), "boot": proc.boot_id()}
    ranks = [{"rank": 0, "ended_utc": None}]
    status = {"state": state, "ranks": ranks, "agent": agent, "node_index": 0, "lost_s": 60, "first_failure": None}
    path = Path(logs.status.status_path(str(folder)))
    path.write_text(json.dumps(status))
    os.utime(path, (time.time(),) * 2)  # the kernel's clock differs where scripts/test-dates shifts the process's


def test_output_of_a_rank_that_prints_fast_is_sent_without_pauses(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"a line of ten bytes or more\n" * 150_000)
    save_status(tmp_path, "running")
    caller, sent = EndingCaller(lambda: save_status(tmp_path, "succeeded")), []
    logs._follow(str(tmp_path), {0: LogReader(str(log), 0, 0)}, sent.append, caller)
    assert sum(message.get("bytes", 0) for message in sent) == log.stat().st_size
    assert max(message.get("bytes", 0) for message in sent) <= 1 << 18
    assert caller.waits == [0] * 16 + [0.05]


@pytest.mark.parametrize(
    ("document", "notice"),
    [
        (
            '{"action": "terminate", "time": "2026-11-21T12:02:00Z"}',
            {"action": "terminate", "time": "2026-11-21T12:02:00Z"},
        ),
        ('{"action": ["x"], "time": 5}', {"action": "", "time": ""}),
        ("<html>", {"action": "", "time": ""}),
    ],
)
def test_notice_of_a_spot_interruption_is_sent_once(tmp_path: Path, monkeypatch, document, notice) -> None:
    requests, seen = [], threading.Event()

    def metadata(request):
        if request.path != "/latest/meta-data/spot/instance-action":
            return [http_response(body=b"token")]
        requests.append(request)
        if len(requests) == 1:  # first there is no notice
            return [http_response("404 Not Found")]
        seen.set()
        return [http_response(body=document.encode())]

    save_status(tmp_path, "running")
    with raw_server(metadata) as server:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
        spot = SpotNotice(every_s=0.001)
        assert seen.wait(10)
        spot.thread.join(10)
    sent: list[dict] = []
    waits = iter(range(3))
    caller = EndingCaller(lambda: next(waits, None) is None and save_status(tmp_path, "succeeded"))
    logs._follow(str(tmp_path), {}, sent.append, caller, spot)
    assert [message for message in sent if "status" not in message] == [{"interruption": notice}]
    assert len(requests) == 2
