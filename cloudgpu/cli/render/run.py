"""The summary panel of a run, and its exit code."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cloudgpu.app.runs.outcome import RunOutcome
from cloudgpu.cli.render.error import short_attempt
from cloudgpu.cli.terminal.number_format import duration, money, plural
from cloudgpu.cli.terminal.panel import Mood, Row
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.errors import RemoteCommandError, TeardownError
from cloudgpu.run.metrics import Measured
from cloudgpu.targets import traits
from cloudgpu.text import command

if TYPE_CHECKING:
    from cloudgpu.app.runs.follow import FollowResult

_INTERRUPTED = 130
_STAGES_A_LINE = 5
_MOODS: dict[str, Mood] = {"succeeded": "green", "failed": "red", "lost": "red"}


def exit_code(outcome: RunOutcome) -> int:
    """Return 6 if the cluster could not be deleted, else 130 after Ctrl-C, else the exit code for the run's state."""
    if outcome.unended:
        return TeardownError.exit_code
    if outcome.interrupted or outcome.record.reason == "interrupted":
        return _INTERRUPTED
    return _state_code(outcome)


def _state_code(outcome: RunOutcome) -> int:
    """Return the exit code for the state of a run.

    The code is 0 for a run that succeeded, was detached, was not executed or is being prepared; 130 for any other
    running run; and 5 for a run that failed or whose outputs were not downloaded.
    """
    state = outcome.record.state
    if state == "running":
        return 0 if outcome.kept == "detached" else _INTERRUPTED
    good = state in ("succeeded", "not-run", "preparing") and not (outcome.unfetched or outcome.lost)
    return 0 if good else RemoteCommandError.exit_code


def show_outcome(outcome: RunOutcome, screen: Screen) -> None:
    """Show the summary panel and, below it, the last lines of the failed rank."""
    state = outcome.record.state
    screen.panel(outcome_title(outcome), outcome_rows(outcome), _MOODS.get(state, "yellow"))
    screen.lines(failure_lines(outcome))


def outcome_title(outcome: RunOutcome) -> str:
    """Return a title such as `quickstart-k3fz8w succeeded (simulated)`."""
    record = outcome.record
    state = {"not-run": "was not run", "running": "is running"}.get(record.state, record.state)
    return f"{record.run_id} {state}{' (simulated)' if outcome.simulated else ''}"


def outcome_rows(outcome: RunOutcome) -> list[Row]:
    """Return the hardware, the time of each stage, the metrics, the cost, and what is still running."""
    return [*_what(outcome), *_reached(outcome), *_figures(outcome), *_next(outcome)]


def failure_lines(outcome: RunOutcome) -> list[str]:
    """Return the rank that failed first and the last lines of its output."""
    record = outcome.record
    if record.failed_rank is None or record.state == "succeeded":
        return []
    node = next((node for node, ranks in record.ranks.items() if record.failed_rank in ranks), "")
    where = f" on node {node}" if node else ""
    # A service that never became ready has no exit code.
    how = "" if record.exit_code is None else f" failed first (exit code {record.exit_code})"
    head = f"rank {record.failed_rank}{how}{where}; last lines of its output:"
    return ["", head, *(f"  {line}" for line in outcome.tail)]


def report_final_state(followed: "FollowResult", screen: Screen) -> int:
    """Report the final state of the run, and return the exit code of `logs -f`."""
    verdict = followed.verdict
    if verdict.succeeded:
        screen.line("the run succeeded; to download its outputs and delete its cluster: cloudgpu attach")
        return 0
    where = "" if verdict.rank is None else f": rank {verdict.rank} exited with code {verdict.exit_code}"
    screen.line(f"the run {verdict.state}{where} {verdict.reason}".rstrip())
    screen.line("to download the outputs and delete the cluster: cloudgpu attach")
    return RemoteCommandError.exit_code


def _what(outcome: RunOutcome) -> Iterator[Row]:
    record = outcome.record
    if record.reason:
        yield "reason", record.reason
    machines = f"{outcome.nodes} x {outcome.instance_type} in {outcome.zone}" if outcome.nodes else "no cluster"
    yield "ran", f"recipe {record.recipe} on {machines}"
    for place, attempt in enumerate(record.tried):
        yield "tried" if place == 0 else "", short_attempt(attempt)
    yield from _stages(outcome)


def _stages(outcome: RunOutcome) -> Iterator[Row]:
    took = [f"{name} {duration(seconds)}" for name, seconds in outcome.record.stages]
    if took:
        yield "took", f"{duration(outcome.seconds)} in total"
    for first in range(0, len(took), _STAGES_A_LINE):
        yield "", ", ".join(took[first : first + _STAGES_A_LINE])


def _reached(outcome: RunOutcome) -> Iterator[Row]:
    for place, measured in enumerate(outcome.measured):
        yield "reached" if place == 0 else "", _metric(measured)


def _figures(outcome: RunOutcome) -> Iterator[Row]:
    record = outcome.record
    if record.ended_at is not None:
        yield "cost", _cost(outcome)
    if record.outputs:
        yield "outputs", f"{plural(len(record.outputs), 'file')} in {outcome.outputs}"
    for note in outcome.notes:
        yield "note", note


def _next(outcome: RunOutcome) -> Iterator[Row]:
    run_id = outcome.record.run_id
    yield "logs", command("cloudgpu", "logs", run_id)
    if outcome.record.state == "running":
        yield "finish", command("cloudgpu", "attach", run_id)
        yield "cancel", command("cloudgpu", "cancel", run_id)
    if outcome.unfetched:
        yield "not downloaded", "; ".join(outcome.unfetched)
        yield "download", command("cloudgpu", "attach", run_id)
    if outcome.lost:
        yield "lost", "; ".join(outcome.lost)
    if outcome.unended:
        yield "not deleted", outcome.unended
        yield "delete", command("cloudgpu", "down", outcome.record.cluster)
    left = [part for entry in outcome.left for part in entry.split("; ")]
    confirmed = "verified by tag search" if traits(outcome.record.target).launches else "confirmed by every host"
    nothing = f"nothing ({confirmed})"
    for place, part in enumerate(left or [nothing]):
        yield "left" if place == 0 else "", part


def _metric(measured: Measured) -> str:
    if measured.value is None:
        return f"{measured.name}: {_why_none(measured)}"
    text = f"{measured.name} {measured.value:g} {measured.metric.unit}".rstrip() + _taken(measured)
    if measured.metric.at_least is not None:
        minimum = f"{measured.metric.at_least:g}"
        text += f" (below the required {minimum})" if measured.missed_target else f" (at least {minimum})"
    if measured.metric.reference is not None and measured.share is not None:
        reference = measured.metric.reference
        text += f", {measured.share:.0%} of the reference {reference.value:g}: {reference.on} ({reference.source})"
    return text


def _why_none(measured: Measured) -> str:
    if not measured.printed:
        return "never printed"
    skipped = measured.metric.skip
    return f"printed {measured.printed} times; no rank printed more than the first {skipped}, which are skipped"


def _taken(measured: Measured) -> str:
    """Format how a metric was chosen from several values; empty for the default, the last value of the first rank."""
    several = measured.counted > 1 and measured.metric.take != "last"
    how = [f"{measured.metric.take} of {measured.counted}"] if several else []
    return f" ({', '.join([*how, *_together(measured)])})" if how or _together(measured) else ""


def _together(measured: Measured) -> list[str]:
    return [] if measured.metric.over_ranks == "first" else [f"{measured.metric.over_ranks} over the ranks"]


def _cost(outcome: RunOutcome) -> str:
    if outcome.simulated:
        return f"{money(outcome.usd)} (simulated; nothing was charged)"
    return money(outcome.usd)
