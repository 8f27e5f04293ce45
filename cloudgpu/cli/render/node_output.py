"""Output of a command on nodes: nodes with the same output share a block; stderr and failures are separate."""

from collections.abc import Sequence

from cloudgpu.app.access.execute import NodeOutcome, OnLine
from cloudgpu.cli.terminal.screen import Screen

_SIGNALLED = 128


def show_line(screen: Screen) -> OnLine:
    """Shows lines as they come, each with its node."""

    def shown(index: int, error: bool, line: str) -> None:
        text = f"[node {index}] {line}"
        if error:
            screen.remark(text)
        else:
            screen.line(text)

    return shown


def show_outcomes(outcomes: Sequence[NodeOutcome], screen: Screen) -> None:
    """Standard output to standard output, everything else to standard error."""
    alone = len(outcomes) == 1
    for nodes, outcome in folded(outcomes):
        if alone:
            _raw(outcome, screen)
        else:
            screen.lines(block(nodes, outcome.stdout))
            for line in block(f"{nodes}, standard error", outcome.stderr):
                screen.remark(line)
        for line in bad_end(nodes, outcome):
            screen.remark(line)


def folded(outcomes: Sequence[NodeOutcome]) -> list[tuple[str, NodeOutcome]]:
    """Nodes that said the same and ended alike, and one of them; in the order of their first nodes."""
    groups: dict[tuple[object, ...], list[NodeOutcome]] = {}
    for outcome in outcomes:
        # Errors name their node, so those of two nodes never look alike.
        groups.setdefault((outcome.exit_code, outcome.stdout, outcome.stderr, outcome.error), []).append(outcome)
    return [(named([outcome.node for outcome in group]), group[0]) for group in groups.values()]


def named(indices: Sequence[int]) -> str:
    """`node 3`, `nodes 0-2, 5`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    listed = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"node{'s' if len(indices) > 1 else ''} {listed}"


def block(title: str, text: str) -> list[str]:
    """A text under a title; nothing where there is none."""
    lines = text.splitlines()
    return [f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def bad_end(nodes: str, outcome: NodeOutcome) -> list[str]:
    """How it ended, where it did not end well."""
    if outcome.error:
        return [f"{nodes}: {outcome.error}", *([f"  hint: {outcome.hint}"] if outcome.hint else [])]
    if not outcome.exit_code:
        return []
    signal = outcome.exit_code - _SIGNALLED
    by = f" (signal {signal})" if signal > 0 else ""
    return [f"{nodes}: ended with exit code {outcome.exit_code}{by}"]


def _raw(outcome: NodeOutcome, screen: Screen) -> None:
    """Write the output of a single node, unchanged where a pipe or a file takes it."""
    screen.raw(outcome.stdout)
    for line in outcome.stderr.splitlines():
        screen.remark(line)
