"""Follow the output of a run from real agent daemons."""

import json
import os
import signal
import time

import pytest

from cloudgpu.run.agent_messages import Chunk

pytestmark = [pytest.mark.main_path, pytest.mark.system]


def messages(output: bytes) -> list[dict]:
    return [json.loads(line) for line in output.splitlines()]


def test_follow_delivers_all_output_then_final_status(make_gang) -> None:
    gang = make_gang(1)
    gang.start("for i in 1 2 3; do echo line $i; sleep 0.2; done; printf 'no newline'", "printf '\\xff\\n'")
    out, _ = gang.popen("follow", {"run_dir": str(gang.dir(0)), "offsets": {}}).communicate(timeout=30)
    *lines, last = messages(out)
    assert last["status"]["state"] == "succeeded"
    assert "".join(m["data"] for m in lines if m["rank"] == 0) == "line 1\nline 2\nline 3\nno newline"
    assert [(m["data"], m["bytes"]) for m in lines if m["rank"] == 1] == [("\udcff\n", 2)]


def test_follow_delivers_lines_within_300_ms(make_gang) -> None:
    gang = make_gang(1)
    gang.start("while true; do date +%s.%N; sleep 0.3; done")
    gang.wait(state={"running"})
    follower = gang.popen("follow", {"run_dir": str(gang.dir(0))})
    delays = []
    for _ in range(6):
        for line in json.loads(follower.stdout.readline())["data"].split():
            delays.append(time.time() - float(line))
    follower.kill()
    follower.communicate()
    assert sorted(delays)[len(delays) // 2] < 0.3, delays
    gang.call("stop", {"run_dir": str(gang.dir(0)), "grace_s": 1})


def test_restarted_follow_neither_loses_nor_repeats_output(make_gang) -> None:
    gang = make_gang(1)
    gang.start("for i in $(seq 1 400); do echo line $i äöü; [ $((i % 40)) = 0 ] && sleep 0.1; done")
    seen, offset = b"", 0
    for cut in (1, 2, 3, 5, 8, None):
        follower = gang.popen("follow", {"run_dir": str(gang.dir(0)), "offsets": {"0": offset}})
        for count, raw in enumerate(follower.stdout, 1):
            message = json.loads(raw)
            if "status" in message:
                break
            assert message["offset"] == offset
            seen += message["data"].encode()
            offset += message["bytes"]
            if count == cut:
                break
        follower.kill()
        follower.communicate()
    assert seen.decode() == "".join(f"line {i} äöü\n" for i in range(1, 401))


def test_follow_resumes_at_every_offset_of_finished_log(make_gang) -> None:
    gang = make_gang(1)
    gang.start("printf 'ab\\nä\\n\\nrest'")
    gang.wait()
    log = (gang.dir(0) / "rank-0.log").read_bytes()
    for offset in range(len(log) + 2):
        out, _ = gang.popen("follow", {"run_dir": str(gang.dir(0)), "offsets": {"0": offset}}).communicate(timeout=30)
        *lines, last = messages(out)
        assert "status" in last
        assert sum(m["bytes"] for m in lines) == max(0, len(log) - offset)
        assert "".join(m["data"] for m in lines) == log[offset:].decode("utf-8", "surrogateescape")


def written(gang) -> list[tuple[float, float]]:
    """The times that `follow` sends for lines that are the time at which they were printed, in seconds."""
    out, _ = gang.popen("follow", {"run_dir": str(gang.dir(0)), "once": True}).communicate(timeout=30)
    found = []
    for message in messages(out)[:-1]:
        raw, begin = message["data"].encode(), 0
        for end, milliseconds in message["times"]:
            lines = raw[begin : end - message["offset"]].split()
            begin = end - message["offset"]
            found += [(float(line), milliseconds / 1000) for line in lines if b"." in line]
    return found


def test_follow_sends_when_lines_were_written(make_gang) -> None:
    gang = make_gang(1)
    gang.start("for i in 1 2 3; do date +%s.%N; sleep 1.3; done; for i in 1 2 3 4; do date +%s.%N; sleep 0.4; done")
    gang.wait()
    lines = written(gang)
    assert len(lines) == 7
    # An entry is at most a second late; the clock of file times is up to 10 ms behind, and a busy machine slower.
    assert all(printed - 0.02 <= at <= printed + 3 for printed, at in lines), lines
    assert lines[6][1] - lines[0][1] > 4


def test_times_cover_the_whole_log_when_the_run_ends_and_its_secrets_are_masked(make_gang) -> None:
    gang = make_gang(1)
    gang.start("echo $WORD; sleep 0.5; echo $WORD; sleep 0.2; printf $WORD", secrets={"WORD": "hf_s3cr3t"})
    gang.wait()
    log, times = (gang.dir(0) / f"rank-0.{name}" for name in ("log", "times"))
    assert log.read_text() == "*********\n*********\n*********"
    (*_, last) = times.read_text().splitlines()
    assert int(last.split()[0]) == log.stat().st_size


def test_output_after_the_death_of_the_agent_has_the_time_of_the_last_byte(make_gang) -> None:
    gang = make_gang(1)
    gang.start("date +%s.%N; sleep 300")
    gang.until(lambda: gang.log(0, 0), bool, 5)
    gang.kill(gang.status()["agent"]["pid"], signal.SIGKILL)
    gang.wait(state={"lost"})
    (gang.dir(0) / "rank-0.times").write_bytes(b"")
    os.utime(gang.dir(0) / "rank-0.log", (1000, 1000))
    assert [at for _, at in written(gang)] == [1000]


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_run_whose_times_cannot_be_written_succeeds_without_them(make_gang, kind: str) -> None:
    gang = make_gang(1)
    path = gang.dir(0) / "rank-0.times"
    gang.dir(0).mkdir(parents=True)
    path.mkdir() if kind == "folder" else path.symlink_to("/dev/null")
    gang.start("for i in 1 2 3; do echo line $i; sleep 0.5; done")
    assert gang.wait()["state"] == "succeeded"
    out, _ = gang.popen("follow", {"run_dir": str(gang.dir(0))}).communicate(timeout=30)
    *lines, _ = messages(out)
    assert "".join(message["data"] for message in lines) == "line 1\nline 2\nline 3\n"
    assert not any("times" in message for message in lines)


def test_follow_exits_when_reader_closes_pipe(make_gang) -> None:
    gang = make_gang(1)
    gang.start("sleep 300")
    gang.wait(state={"running"})
    follower = gang.popen("follow", {"run_dir": str(gang.dir(0))})
    time.sleep(0.3)
    assert follower.poll() is None
    follower.stdout.close()
    assert follower.wait(timeout=3) == 1
    follower.stderr.close()
    gang.call("stop", {"run_dir": str(gang.dir(0)), "grace_s": 1})


def test_follow_reports_lost_run_when_agent_dies(make_gang) -> None:
    gang = make_gang(1)
    gang.start("echo before; sleep 300")
    gang.until(lambda: gang.log(0, 0), bool, 5)
    follower = gang.popen("follow", {"run_dir": str(gang.dir(0))})
    gang.kill(gang.status()["agent"]["pid"], signal.SIGKILL)
    *lines, last = messages(follower.communicate(timeout=10)[0])
    assert [m["data"] for m in lines] == ["before\n"]
    assert last["status"]["state"] == "lost"


def test_copy_delivers_the_output_so_far_and_does_not_wait(make_gang) -> None:
    gang = make_gang(1)
    gang.start("head -c 40000 /dev/zero | tr '\\0' x; echo; echo two; printf unfinished; sleep 300")
    gang.until(lambda: gang.log(0, 0), lambda log: log.endswith("unfinished"), 10)
    request = {"run_dir": str(gang.dir(0)), "offsets": {"0": 40001}, "once": True}
    out, _ = gang.popen("follow", request).communicate(timeout=30)
    copied, end = messages(out)
    assert (copied.pop("times")[-1][0], end) == (40005, {"copied": True})
    assert copied == {"rank": 0, "offset": 40001, "bytes": 4, "data": "two\n"}
    assert gang.status()["state"] == "running"
    out, _ = gang.popen("follow", {**request, "offsets": {}}).communicate(timeout=30)
    chunk, end = messages(out)
    assert Chunk.of(chunk).text == "x" * 40000 + "\ntwo\n"
    assert end == {"copied": True}
