"""The output of `exec`: one block for all nodes with the same output, followed by stderr and failures."""

from collections.abc import Sequence

from cloudgpu.app.access.execute import NodeOutcome, OnLine
from cloudgpu.cli.terminal.screen import Screen

_SIGNALLED = 128


def line_printer(screen: Screen) -> OnLine:
    """Return a callback that shows each line, prefixed with its node, as it arrives."""

    def shown(index: int, error: bool, line: str) -> None:
        text = f"[node {index}] {line}"
        if error:
            screen.error_lines([text])
        else:
            screen.lines([text])

    return shown


def show_outcomes(outcomes: Sequence[NodeOutcome], screen: Screen) -> None:
    """Write the stdout of the nodes to stdout, and their stderr and failures to stderr."""
    alone = len(outcomes) == 1
    for nodes, outcome in group_by_output(outcomes):
        if alone:
            _raw(outcome, screen)
        else:
            screen.lines(indented_block(nodes, outcome.stdout))
            screen.error_lines(indented_block(f"{nodes}, standard error", outcome.stderr))
        for line in failure_lines(nodes, outcome):
            screen.remark(line)


def group_by_output(outcomes: Sequence[NodeOutcome]) -> list[tuple[str, NodeOutcome]]:
    """Group nodes with the same output and exit code, in the order of each group's first node."""
    groups: dict[tuple[object, ...], list[NodeOutcome]] = {}
    for outcome in outcomes:
        # Error messages contain the name of the node, so nodes that could not be reached are never grouped.
        groups.setdefault((outcome.exit_code, outcome.stdout, outcome.stderr, outcome.error), []).append(outcome)
    return [(node_label([outcome.node for outcome in group]), group[0]) for group in groups.values()]


def node_label(indices: Sequence[int]) -> str:
    """Format node indices as `node 3` or `nodes 0-2, 5`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    listed = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"node{'s' if len(indices) > 1 else ''} {listed}"


def indented_block(title: str, text: str) -> list[str]:
    """Return the title and the indented lines of the text; an empty list if the text is empty."""
    lines = text.splitlines()
    return [f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def failure_lines(nodes: str, outcome: NodeOutcome) -> list[str]:
    """Return lines that describe the failure on these nodes; an empty list if the command succeeded."""
    if outcome.error:
        return [f"{nodes}: {outcome.error}", *([f"  hint: {outcome.hint}"] if outcome.hint else [])]
    if not outcome.exit_code:
        return []
    signal = outcome.exit_code - _SIGNALLED
    by = f" (signal {signal})" if signal > 0 else ""
    return [f"{nodes}: failed with exit code {outcome.exit_code}{by}"]


def _raw(outcome: NodeOutcome, screen: Screen) -> None:
    """Write the output of a single node, unchanged if stdout is a pipe or a file."""
    screen.raw(outcome.stdout)
    screen.error_lines(outcome.stderr.splitlines())
