"""The agent's heartbeat: complete lines, only from long verbs, and never in the middle of a message."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cloudgpu.node.agent.heartbeat import ADVANCED_LINE, LINE, Heartbeat, advance

ROOT = Path(__file__).parents[3]
PROGRESS = {"progress": "x" * 300_000}
BEATING = """
import sys, time
from cloudgpu.node.agent import heartbeat, main
heartbeat.EVERY_S = 0.002
main._spec = lambda: {}
class Verb:
    @staticmethod
    def verb(spec, emit):
        for _ in range(20):
            emit({"progress": "x" * 300_000})
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            time.sleep(0.01)
        emit({"done": True})
main.importlib.import_module = lambda *_: Verb
main._VERBS = dict.fromkeys(main._VERBS, "module:verb")
sys.argv = ["agent", NAME]
main.entry()
"""


def said_by(verb: str, **env: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", BEATING.replace("NAME", repr(verb))],
        stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, timeout=60, stdin=subprocess.DEVNULL,
        env={**os.environ, **env},
    )  # fmt: skip
    return done.stdout.split("\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_long_verb_sends_heartbeats_on_separate_lines(unbuffered):
    answers = [json.loads(line) for line in said_by("fetch", PYTHONUNBUFFERED=unbuffered) if line]
    assert sum(answer == json.loads(LINE) for answer in answers) > 2
    assert [answer for answer in answers if "alive" not in answer] == [*[PROGRESS] * 20, {"done": True}]


def test_heartbeat_reports_progress_once(capfd):
    timer, threads = Heartbeat(), [threading.Thread(target=advance) for _ in range(3)]
    timer._beat(0, None)
    for thread in threads:
        thread.start()
        thread.join()
    for _ in range(3):
        timer._beat(0, None)
    beats = capfd.readouterr().out.encode()
    assert beats == LINE + ADVANCED_LINE + LINE + LINE


def test_short_verb_sends_no_heartbeats():
    assert [line for line in said_by("lease") if "alive" in line] == []


def test_closed_reader_does_not_stop_a_verb():
    """The verb notices the closed pipe when it writes."""
    reader, writer = os.pipe()
    os.close(reader)
    quiet = BEATING.replace("NAME", "'fetch'").replace('emit({"progress": "x" * 300_000})', "pass")
    quiet = quiet.replace('emit({"done": True})', 'sys.stderr.write("worked to its end")')
    done = subprocess.run(
        [sys.executable, "-c", quiet], stdout=writer, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT,
        timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(writer)
    assert done.stderr.startswith("worked to its end")
