"""Every agent verb has a time limit; its error names the host, the verb and the next step."""

import json
import re

import pytest

from cloudgpu.backends.hosts.nodes import TakenResponse
from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.node.agent import main
from cloudgpu.node.agent.heartbeat import EVERY_S, LONG_VERBS
from cloudgpu.run import agent as module
from cloudgpu.run.agent import Agent, ask_once, require_shape
from cloudgpu.ssh.base import TimeLimitError
from tests.fake_host import FakeHost, ScriptedResult

NODE = Node(1, "blue@pair", "10.77.0.12", 2222, "lab", ("SHA256:x",), "10.77.0.12", "", "blue", "V100", 8, False)
VERBS = sorted(main._VERBS)


class Stream:
    """An agent's output; the time limit expires after its last line."""

    exit_code = None
    stderr = ""

    def __init__(self, *answers):
        self.answers = answers
        self.limit_s = None
        self.renewed = 0

    def lines(self, timeout_s=None):
        self.limit_s = timeout_s
        yield from map(json.dumps, self.answers)
        raise TimeLimitError("too late")

    def renew(self):
        self.renewed += 1

    def close(self):
        pass


class Lines(Stream):
    """The complete output of an agent."""

    exit_code = 0

    def lines(self, timeout_s=None):
        self.limit_s = timeout_s
        yield from self.answers


@pytest.fixture
def asked(monkeypatch):
    def ask(stream, verb):
        host = FakeHost(NODE)
        monkeypatch.setattr(host, "stream", lambda *_, **__: stream)
        with pytest.raises(ConnectError) as caught:
            Agent(host, "/a", "/home/lab").ask(verb, {})
        return caught.value

    return ask


@pytest.mark.parametrize("verb", VERBS)
def test_unresponsive_agent_times_out_with_node_and_verb_in_error(asked, verb):
    stream = Stream()
    error = asked(stream, verb)
    assert error.message == f"node 1 (blue@pair): the agent did not respond to `{verb}` within {stream.limit_s:g} s"
    assert "ssh -p 2222 lab@10.77.0.12" in error.hint
    assert 60 <= stream.limit_s <= 600


def test_file_transfer_verbs_send_heartbeats():
    """The last checkpoint upload (`kept`) may take longer than any response time limit."""
    assert {"env", "fetch", "hand", "image", "keep", "kept"} <= LONG_VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_heartbeats_extend_the_time_limit_of_long_verbs_only(asked, verb):
    stream = Stream({"progress": "half"}, {"alive": True}, {"progress": "more"})
    asked(stream, verb)
    assert stream.renewed == (3 if verb in LONG_VERBS else 0)


def test_single_request_has_the_same_time_limit(monkeypatch):
    host = FakeHost(NODE)
    monkeypatch.setattr(host, "stream", lambda *_, **__: Stream())
    with pytest.raises(ConnectError, match=r"blue@pair.*did not respond to `leave`"):
        ask_once(host, "leave", {})


def test_heartbeats_are_frequent_and_not_treated_as_responses():
    assert module._ANSWER_S >= 4 * EVERY_S
    said = '\n{"alive":true}\n{"left":[]}\n{"alive":true}\n'
    seen = []
    answer = Agent(FakeHost(NODE).on(" leave$", ScriptedResult(stdout=said)), "/a", "/h").ask("leave", {}, seen.append)
    assert (answer, seen) == ({"left": []}, [])


@pytest.mark.parametrize("answer", [{"motd": 1}, {"devices": "all", "of": 1}, {"devices": [0.5], "of": 1}])
def test_malformed_agent_response_is_a_typed_error(answer):
    with pytest.raises(RemoteCommandError, match=r"node 1 \(blue@pair\): the response to `lease` is malformed"):
        require_shape(NODE, "lease", answer, TakenResponse)


@pytest.mark.parametrize("banner", ["\x1b]0;title\x07", "Hi ", '{"motd": 1}\n', "{ "])
def test_response_after_login_banner_is_parsed(banner):
    host = FakeHost(NODE).on("leave$", ScriptedResult(stdout=banner + '{"left":[]}\n'))
    assert ask_once(host, "leave", {}) == {"left": []}


ADVANCED = {"alive": True, "advanced": True}
LIMITED = {"forget": 120, "keep": 120, "kept": 120, "stop": 12}
"""Heartbeats without progress that each verb may send: 30 minutes, and for `stop` two and a half."""


@pytest.mark.parametrize(("verb", "beats"), LIMITED.items())
def test_agent_that_only_sends_heartbeats_is_given_up(asked, verb, beats):
    error = asked(Stream(*[{"alive": True}] * 100_000), verb)
    assert re.fullmatch(rf"node 1 \(blue@pair\): the agent's `{verb}` made no progress for \d+ s", error.message)
    stream = Stream(*[{"alive": True}] * (beats - 2))
    assert "did not respond" in asked(stream, verb).message, "the limit is shorter than the documented one"


def test_grace_period_of_a_run_extends_the_limit_of_stop(monkeypatch):
    host = FakeHost(NODE)
    beats = [json.dumps({"alive": True})] * 200
    monkeypatch.setattr(host, "stream", lambda *_, **__: Lines(*beats, '{"state": "stopped"}'))
    assert Agent(host, "/a", "/h").ask("stop", {"grace_s": 86400}) == {"state": "stopped"}
    with pytest.raises(ConnectError, match="made no progress for 160 s"):
        Agent(host, "/a", "/h").ask("stop", {"grace_s": 10})


def test_upload_that_advances_is_waited_for(monkeypatch):
    host = FakeHost(NODE)
    beats = [json.dumps({"alive": True})] * 119 + [json.dumps(ADVANCED)]
    monkeypatch.setattr(host, "stream", lambda *_, **__: Lines(*beats * 50, '{"files": 3, "bytes": 9}'))
    assert Agent(host, "/a", "/h").ask("kept", {}) == {"files": 3, "bytes": 9}


@pytest.mark.parametrize("verb", sorted(LONG_VERBS - set(LIMITED)))
def test_programs_of_the_user_may_take_any_time(monkeypatch, verb):
    host = FakeHost(NODE)
    monkeypatch.setattr(host, "stream", lambda *_, **__: Lines(*['{"alive": true}'] * 10_000, '{"done": 1}'))
    assert Agent(host, "/a", "/h").ask(verb, {}) == {"done": 1}
