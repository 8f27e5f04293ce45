"""`ssh`: which node is meant, and which command."""

import pytest

from cloudgpu.app.access.ssh import parse_node_and_command
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
def test_a_node_stands_behind_the_name_or_is_an_option(option, words, behind, expected):
    assert parse_node_and_command(option, words, behind) == expected


def test_two_nodes_are_one_too_many():
    with pytest.raises(UsageError, match="node 2 and --node 1"):
        parse_node_and_command(1, ["2"], [])
