"""Every agent verb has a time limit; its error names the host, the verb and the next step."""

import json

import pytest

from cloudgpu.backends.hosts.agent_messages import TakenResponse
from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.node.agent import main
from cloudgpu.node.agent.heartbeat import EVERY_S, LONG_VERBS
from cloudgpu.run import agent as module
from cloudgpu.run.agent import Agent, ask_once, require_shape
from cloudgpu.ssh.failure_text import TimeLimitError
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
