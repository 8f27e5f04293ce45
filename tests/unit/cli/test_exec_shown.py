"""Text output of `exec`: identical node output is grouped."""

from cloudgpu.app.execute import NodeOutcome
from cloudgpu.cli.commands.nodes import line_printer, node_label, show_outcomes
from cloudgpu.cli.terminal.screen import Screen

SAME = "Tesla V100\nTesla V100\n"


def shown(capsys, *outcomes):
    show_outcomes(outcomes, Screen())
    return capsys.readouterr()


def test_nodes_with_identical_output_share_a_block(capsys):
    told = shown(
        capsys,
        NodeOutcome(0, 0, SAME),
        NodeOutcome(1, 0, "\x1b[31mK80\n"),
        NodeOutcome(2, 0, SAME),
        NodeOutcome(3, 0, SAME, "slow\n"),
        NodeOutcome(4, 0, SAME),
        NodeOutcome(5, 2, "", "no such file\n"),
        NodeOutcome(6, 137),
        NodeOutcome(7, error="node 7 cannot be reached", hint="status --refresh"),
    )
    assert (
        told.out
        == """\
nodes 0, 2, 4:
  Tesla V100
  Tesla V100
node 1:
  \ufffd[31mK80
node 3:
  Tesla V100
  Tesla V100
"""
    )
    assert (
        told.err
        == """\
node 3, standard error:
  slow
node 5, standard error:
  no such file
node 5: failed with exit code 2
node 6: failed with exit code 137 (signal 9)
node 7: node 7 cannot be reached
  hint: status --refresh
"""
    )


def test_output_of_a_single_node_is_unchanged(capsys):
    told = shown(capsys, NodeOutcome(3, 1, "a\tb\x00\nno newline", "why\n"))
    assert told.out == "a\tb\x00\nno newline"
    assert told.err == "why\nnode 3: failed with exit code 1\n"


def test_empty_node_output_shows_nothing(capsys):
    assert shown(capsys, NodeOutcome(0, 0), NodeOutcome(1, 0)) == ("", "")


def test_streamed_lines_are_prefixed_with_their_node(capsys):
    show = line_printer(Screen())
    show(0, False, "one")
    show(12, True, "two")
    assert capsys.readouterr() == ("[node 0] one\n", "[node 12] two\n")


def test_node_label_joins_consecutive_nodes_into_ranges():
    assert node_label([3]) == "node 3"
    assert node_label([5, 0, 1, 2, 7, 8]) == "nodes 0-2, 5, 7-8"
