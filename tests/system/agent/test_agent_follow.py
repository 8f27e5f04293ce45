"""Following a run's output from real daemons."""

import json
import signal
import time

import pytest

pytestmark = [pytest.mark.main_path, pytest.mark.system]


def messages(output: bytes) -> list[dict]:
    return [json.loads(line) for line in output.splitlines()]


def test_follow_delivers_everything_then_the_status(make_gang) -> None:
    gang = make_gang(1)
    gang.start("for i in 1 2 3; do echo line $i; sleep 0.2; done; printf 'no newline'", "printf '\\xff\\n'")
    out, _ = gang.popen("follow", {"run_dir": str(gang.dir(0)), "offsets": {}}).communicate(timeout=30)
    *lines, last = messages(out)
    assert last["status"]["state"] == "succeeded"
    assert "".join(m["data"] for m in lines if m["rank"] == 0) == "line 1\nline 2\nline 3\nno newline"
    assert [(m["data"], m["bytes"]) for m in lines if m["rank"] == 1] == [("\udcff\n", 2)]


def test_follow_is_quick(make_gang) -> None:
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


def test_following_again_loses_and_repeats_nothing(make_gang) -> None:
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


def test_every_offset_of_a_finished_log(make_gang) -> None:
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


def test_a_follower_ends_when_nobody_reads_it(make_gang) -> None:
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


def test_follow_ends_when_the_agent_dies(make_gang) -> None:
    gang = make_gang(1)
    gang.start("echo before; sleep 300")
    gang.until(lambda: gang.log(0, 0), bool, 5)
    follower = gang.popen("follow", {"run_dir": str(gang.dir(0))})
    gang.kill(gang.status()["agent"]["pid"], signal.SIGKILL)
    *lines, last = messages(follower.communicate(timeout=10)[0])
    assert [m["data"] for m in lines] == ["before\n"]
    assert last["status"]["state"] == "lost"
