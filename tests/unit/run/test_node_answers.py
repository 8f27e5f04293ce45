"""What a node answers is checked where it arrives, and so is what is handed to it."""

import json

import pytest

from cloudgpu import bounds
from cloudgpu.errors import RemoteCommandError, UsageError
from cloudgpu.launch.inventory import Node
from cloudgpu.run.agent import AgentReplyError, _lines, count_field
from cloudgpu.run.start import secret_values
from cloudgpu.run.verdict import Chunk, Verdict

NODE = Node(0, "i-0", "127.0.0.2", 22, "u", ("SHA256:x",), "127.0.0.2", "g5.xlarge", "z", "A10G", 1, True)
ODD = [True, "5", 5.0, -1, 10**30, [5], float("inf")]


@pytest.mark.parametrize("value", [*ODD, None])
def test_a_number_that_is_none_is_an_error_of_the_agent(value):
    with pytest.raises(AgentReplyError, match="the agent sent an invalid value for bytes"):
        count_field({"bytes": value}, "bytes")


def test_a_number_and_what_counts_without_one():
    assert count_field({"bytes": 5}, "bytes") == 5
    assert count_field({}, "bytes", 0) == 0


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("field", ["rank", "offset", "bytes"])
def test_a_piece_of_a_log_that_makes_no_sense(field, value):
    with pytest.raises(RemoteCommandError, match="malformed log chunk"):
        Chunk.of({"rank": 0, "offset": 0, "bytes": 2, "data": "ab", field: value})


@pytest.mark.parametrize("value", [True, "5", 5.5, [5], 10**30])
@pytest.mark.parametrize("field", ["rank", "exit_code", "node_index"])
def test_a_status_that_makes_no_sense(field, value):
    with pytest.raises(RemoteCommandError, match="malformed status"):
        Verdict.of({"state": "failed", "first_failure": {field: value}})
    assert Verdict.of({"state": "failed", "first_failure": {"exit_code": -9}}).exit_code == -9


class Stream:
    def lines(self, timeout_s=None):
        return iter(["[" * 100_000, '{"a": NaN}', "banner", json.dumps({"a": 1})])


def test_lines_that_are_no_answers_are_passed_over():
    assert list(_lines(Stream(), "probe", NODE)) == [{"a": 1}]


@pytest.mark.parametrize(
    ("value", "why"),
    [("a\0b", "NUL"), ("caf\udce9", "UTF-8"), ("x" * (bounds.MAX_ARGUMENT_BYTES - len("TOKEN=") + 1), "131,072 bytes")],
    ids=["nul", "bytes", "long"],
)
def test_a_secret_that_no_node_can_be_given_is_refused_and_never_shown(value, why):
    with pytest.raises(UsageError, match="the secret TOKEN cannot be sent to the nodes") as caught:
        secret_values(("TOKEN",), {"TOKEN": value})
    assert why in caught.value.message
    assert value[:50] not in caught.value.message
    assert secret_values(("TOKEN",), {"TOKEN": "a\r\nb\x1b"}) == {"TOKEN": "a\r\nb\x1b"}
