"""Node selection, command quoting and exit codes of `exec`. tests/system/ssh runs it over real SSH."""

import pytest

from cloudgpu.app.execute import NodeOutcome, as_json, exit_code, parse_node_indices, shell_line
from cloudgpu.errors import UsageError


def test_node_indices_accept_numbers_and_ranges():
    assert parse_node_indices("", 3) == (0, 1, 2)
    assert parse_node_indices("2,0", 3) == (0, 2)
    assert parse_node_indices("0-1, 4,1-2", 5) == (0, 1, 2, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", "--node 3: 3 is not an index or ascending range; its nodes are 0 to 2"),
        ("2-1", "--node 2-1: 2-1 is not an index or ascending range; its nodes are 0 to 2"),
        ("1,,2", "--node 1,,2: an empty entry is not a node index"),
        ("head", "--node head: head is not a node index"),
    ],
)
def test_invalid_node_indices_are_rejected(text, message):
    with pytest.raises(UsageError) as raised:
        parse_node_indices(text, 3)
    assert raised.value.message == message


def test_single_word_runs_as_shell_line_and_several_are_quoted():
    assert shell_line(["ps aux | wc -l"]) == "ps aux | wc -l"
    assert shell_line(["echo", "a  b", "$HOME"]) == "echo 'a  b' '$HOME'"
    with pytest.raises(UsageError, match="no command specified"):
        shell_line([])
    with pytest.raises(UsageError, match="no command specified"):
        shell_line([""])


def test_exit_code_is_the_worst_outcome_of_all_nodes():
    good, bad, lost = NodeOutcome(0, 0), NodeOutcome(1, 3), NodeOutcome(2, error="out of reach")
    assert [exit_code(some) for some in ([good], [good, bad], [good, lost], [bad, lost])] == [0, 5, 9, 9]
    assert as_json("lab", "true", [good, lost]) == {
        "cluster": "lab",
        "command": "true",
        "exit_code": 9,
        "nodes": [
            {"node": 0, "exit_code": 0, "stdout": "", "stderr": "", "seconds": 0.0, "error": "", "hint": ""},
            {"node": 2, "exit_code": None, "stdout": "", "stderr": "", "seconds": 0.0, "error": "out of reach",
             "hint": ""},
        ],
    }  # fmt: skip
