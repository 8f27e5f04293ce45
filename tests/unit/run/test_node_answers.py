"""Responses from nodes and values sent to them are validated."""

import base64
import json
import zlib

import pytest

from cloudgpu import bounds
from cloudgpu.cli.render.error import detail_lines
from cloudgpu.errors import RemoteCommandError, UsageError
from cloudgpu.launch.inventory import Node
from cloudgpu.node.agent.gang.logs import _encoded
from cloudgpu.run.agent import Agent, AgentReplyError, _lines, _split_output, ask_once, count_field
from cloudgpu.run.agent_messages import Chunk, Verdict
from cloudgpu.run.start import secret_values
from tests.fake_host import FakeHost, ScriptedResult

NODE = Node(0, "i-0", "127.0.0.2", 22, "u", ("SHA256:x",), "127.0.0.2", "g5.xlarge", "z", "A10G", 1, True)
ODD = [True, "5", 5.0, -1, 10**30, [5], float("inf")]


@pytest.mark.parametrize("value", [*ODD, None])
def test_invalid_number_from_agent_is_an_agent_error(value):
    with pytest.raises(AgentReplyError, match="the agent sent an invalid value for bytes"):
        count_field({"bytes": value}, "bytes")


class NodeHost:
    node = NODE


def test_output_of_a_failed_tool_is_shown_as_lines():
    """Regression: the newlines between the lines were shown as replacement characters in one long message."""
    answer = {"error": "installing the requirements failed (pip: exit code 1):\nLooking in links\n\x1b[31mERROR: no x"}
    with pytest.raises(AgentReplyError) as caught:
        Agent(NodeHost(), "agent.py", "/home/u").answered("environment", answer, Stream())
    assert caught.value.message == (
        "node 0 (i-0): installing the requirements failed (pip: exit code 1): \ufffd[31mERROR: no x"
    )
    assert detail_lines(caught.value) == ["Looking in links"]


@pytest.mark.parametrize("error", ["", "busy", "cannot read x: denied"])
def test_error_of_one_line_is_the_message(error):
    assert _split_output(error) == (error, [])


def test_missing_number_uses_its_default():
    assert count_field({"bytes": 5}, "bytes") == 5
    assert count_field({}, "bytes", 0) == 0


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("field", ["rank", "offset", "bytes"])
def test_malformed_log_chunk_is_rejected(field, value):
    with pytest.raises(RemoteCommandError, match="malformed log chunk"):
        Chunk.of({"rank": 0, "offset": 0, "bytes": 2, "data": "ab", field: value})


@pytest.mark.parametrize("value", [True, "5", 5.5, [5], 10**30])
@pytest.mark.parametrize("field", ["rank", "exit_code", "node_index"])
def test_malformed_status_is_rejected(field, value):
    with pytest.raises(RemoteCommandError, match="malformed status"):
        Verdict.of({"state": "failed", "first_failure": {field: value}})
    assert Verdict.of({"state": "failed", "first_failure": {"exit_code": -9}}).exit_code == -9


class Stream:
    exit_code = 0

    def lines(self, timeout_s=None):
        return iter(["[" * 100_000, '{"a": NaN}', "banner", json.dumps({"a": 1})])


def test_lines_that_are_not_json_objects_are_skipped():
    assert list(_lines(Stream(), "probe", NODE)) == [{"a": 1}]


@pytest.mark.parametrize(
    ("value", "why"),
    [("a\0b", "NUL"), ("caf\udce9", "UTF-8"), ("x" * (bounds.MAX_ARGUMENT_BYTES - len("TOKEN=") + 1), "131,072 bytes")],
    ids=["nul", "bytes", "long"],
)
def test_unsendable_secret_is_rejected_without_showing_its_value(value, why):
    with pytest.raises(UsageError, match="the secret TOKEN cannot be sent to the nodes") as caught:
        secret_values(("TOKEN",), {"TOKEN": value})
    assert why in caught.value.message
    assert value[:50] not in caught.value.message
    assert secret_values(("TOKEN",), {"TOKEN": "abcd\r\nb\x1b"}) == {"TOKEN": "abcd\r\nb\x1b"}


@pytest.mark.parametrize("value", ["abc", "é€"[:1], "a\nbc\n", " abc "])
def test_secret_that_is_too_short_to_be_masked_is_rejected_without_showing_it(value):
    with pytest.raises(UsageError) as caught:
        secret_values(("TOKEN",), {"TOKEN": value})
    assert caught.value.message == (
        "the secret TOKEN is too short: only values of at least 4 bytes can be masked in the output"
    )
    assert caught.value.hint == "choose a longer value or, if TOKEN need not be secret, pass it with --env"
    assert value not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("value", ["", "abcd", "é€", "}\nabcd"])
def test_secret_is_accepted_if_it_is_empty_or_can_be_masked(value):
    assert secret_values(("TOKEN",), {"TOKEN": value}) == {"TOKEN": value}


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize("raw", [b"epoch=1\n" * 3000, b"\xff\xc3\n" * 9000], ids=["text", "bytes"])
def test_compressed_log_chunk_is_restored_exactly(raw):
    message = {"rank": 3, "offset": 7, "bytes": len(raw), **_encoded(raw)}
    assert "data" not in message
    assert len(message["zlib"]) < len(raw) / 10
    assert Chunk.of(message).raw == raw


def test_short_log_chunk_is_restored_exactly():
    raw = b"\xff\xc3 \xe2\x82\xac\n"
    message = {"rank": 3, "offset": 7, "bytes": len(raw), **_encoded(raw)}
    assert "data" in message
    assert Chunk.of(json.loads(json.dumps(message))).raw == raw


@pytest.mark.parametrize(
    "value",
    [packed(b"abc"), packed(b"a" * 1_000_000), packed(b""), "@@@", "", 7, None, base64.b64encode(b"not zlib").decode()],
    ids=["longer", "bomb", "empty", "no base64", "nothing", "number", "null", "no zlib"],
)
def test_malformed_compressed_chunk_is_refused_without_being_inflated(value):
    with pytest.raises(RemoteCommandError, match="log"):
        Chunk.of({"rank": 0, "offset": 0, "bytes": 2, "zlib": value})


def test_text_that_a_login_shell_prints_instead_of_an_answer_is_shown():
    refusal = "\nThis account is currently not available.\n"
    host = FakeHost(NODE).on("lease", ScriptedResult(refusal, exit_code=1))
    with pytest.raises(RemoteCommandError) as caught:
        ask_once(host, "lease", {})
    assert caught.value.message.endswith("`lease` exited with code 1: This account is currently not available.")
    # Standard error takes precedence: a banner explains nothing.
    host = FakeHost(NODE).on("lease", ScriptedResult("Welcome!\n", "python3: Command not found.\n", exit_code=1))
    with pytest.raises(RemoteCommandError, match=r"exited with code 1: python3: Command not found\.$"):
        ask_once(host, "lease", {})
