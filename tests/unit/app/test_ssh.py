"""How `ssh` parses the node and the command."""

import pytest

from cloudgpu.app.ssh import parse_node_and_command
from cloudgpu.errors import UsageError


@pytest.mark.parametrize(
    ("option", "words", "behind", "expected"),
    [
        (None, [], [], (0, ())),
        (None, ["2"], [], (2, ())),
        (2, [], ["hostname"], (2, ("hostname",))),
        (None, ["1"], ["echo", "3"], (1, ("echo", "3"))),
        (None, ["1", "hostname"], [], (1, ("hostname",))),
        (1, ["hostname"], ["-f"], (1, ("hostname", "-f"))),
        (1, ["1"], [], (1, ())),
    ],
)
def test_ssh_node_is_given_as_word_or_option(option, words, behind, expected):
    assert parse_node_and_command(option, words, behind) == expected


def test_ssh_rejects_two_node_indices():
    with pytest.raises(UsageError, match="node 2 and --node 1"):
        parse_node_and_command(1, ["2"], [])
