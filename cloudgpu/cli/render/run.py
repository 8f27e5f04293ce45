"""The summary panel of a run, and the exit code of the command."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cloudgpu.app.runs.lost_nodes import what_is_lost
from cloudgpu.app.runs.outcome import RunOutcome
from cloudgpu.cli.render.error import short_attempt
from cloudgpu.cli.terminal.number_format import duration, money
from cloudgpu.cli.terminal.output import Mood, Row
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.errors import RemoteCommandError, TeardownError
from cloudgpu.run.metrics import Measured
from cloudgpu.run.progress import RankLine
from cloudgpu.run.transport import describe_transport
from cloudgpu.targets import traits
from cloudgpu.text import command, plural

if TYPE_CHECKING:
    from cloudgpu.app.runs.nodes import FollowResult

_INTERRUPTED = 130
_SHORT_S = 1.0
"""Minimum duration in seconds of a stage that the summary lists. Shorter stages are added up."""
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

    The code is 0 for a run that succeeded, was detached, was not executed or is being prepared, and 130 if the command
    left the run running for another reason. Otherwise, or if outputs were not downloaded, the code is 5.
    """
    state = outcome.record.state
    if state == "running":
        return 0 if outcome.kept == "detached" else _INTERRUPTED
    good = state in ("succeeded", "not-run", "preparing") and not (outcome.unfetched or outcome.lost)
    return 0 if good else RemoteCommandError.exit_code


def show_outcome(outcome: RunOutcome, screen: Screen) -> None:
    """Show the summary panel and, below it, the last output lines of the rank that failed first, if any."""
    state = outcome.record.state
    screen.panel(outcome_title(outcome), outcome_rows(outcome), _MOODS.get(state, "yellow"))
    screen.lines(failure_lines(outcome, printed=_is_printed(outcome, screen.rank_lines)))


def _is_printed(outcome: RunOutcome, lines: Iterable[RankLine]) -> bool:
    """Return True if the last lines of the rank that failed first are among the lines that were just printed."""
    printed = [line.text for line in lines if line.rank == outcome.record.failed_rank]
    return bool(outcome.tail) and printed[-len(outcome.tail) :] == list(outcome.tail)


def outcome_title(outcome: RunOutcome) -> str:
    """Return a title such as `quickstart-k3fz8w succeeded (simulated)`."""
    record = outcome.record
    state = {"not-run": "was not run", "running": "is running"}.get(record.state, record.state)
    return f"{record.run_id} {state}{' (simulated)' if outcome.simulated else ''}"


def outcome_rows(outcome: RunOutcome) -> list[Row]:
    """Return the hardware, stage durations, metrics, cost, next commands, and resources that are still running."""
    return [*_what(outcome), *_network(outcome), *_reached(outcome), *_figures(outcome), *_next(outcome)]


def failure_lines(outcome: RunOutcome, *, printed: bool = False) -> list[str]:
    """Return the rank that failed first and the last lines of its output; an empty list if no rank failed.

    The lines are left out if they have just been `printed`.
    """
    record = outcome.record
    if record.failed_rank is None or record.state == "succeeded":
        return []
    node = next((node for node, ranks in record.ranks.items() if record.failed_rank in ranks), "")
    where = f" on node {node}" if node else ""
    # A service that never became ready has no exit code.
    failed = "failed when the run lost a node" if record.state == "lost" else "failed first"
    how = "" if record.exit_code is None else f" {failed} (exit code {record.exit_code})"
    head = f"rank {record.failed_rank}{how}{where}"
    if printed:
        return ["", f"{head}; the last lines of its output are above"]
    head = f"{head}; last lines of its output:"
    return ["", head, *(f"  {line}" for line in outcome.tail)]


def report_final_state(run_id: str, followed: "FollowResult", screen: Screen) -> int:
    """Report the final state of the run, and return the exit code of `logs -f`."""
    verdict = followed.verdict
    attach = command("cloudgpu", "attach", run_id)
    if verdict.succeeded:
        screen.line(f"the run succeeded; to download its outputs and delete its cluster: {attach}")
        return 0
    where = "" if verdict.rank is None else f"; rank {verdict.rank} failed"
    if verdict.exit_code is not None:
        where += f" with exit code {verdict.exit_code}"
    reason = f"; {verdict.reason}" if verdict.reason else ""
    why = f"{reason}{where}" if verdict.state == "lost" else f"{where}{reason}"
    screen.line(f"final state of the run: {verdict.state}{why}")
    screen.line(f"to download the outputs and delete the cluster: {attach}")
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
    stages = outcome.record.stages
    if stages:
        took = [f"{name} {duration(seconds)}" for name, seconds in stages if seconds >= _SHORT_S]
        short = [seconds for _, seconds in stages if seconds < _SHORT_S]
        parts = [*took, *([f"other stages {duration(sum(short))}"] if short else [])]
        yield "took", f"{duration(outcome.seconds)} in total: {', '.join(parts)}" if took else duration(outcome.seconds)


def _network(outcome: RunOutcome) -> Iterator[Row]:
    """Yield the network between the nodes, with the cost of a slower one."""
    record = outcome.record
    if record.transport:
        resources = record.resolved.get("resources")
        network = str(resources.get("network", "auto")) if isinstance(resources, Mapping) else "auto"
        yield "network", describe_transport(record.transport, outcome.instance_type, network)


def _reached(outcome: RunOutcome) -> Iterator[Row]:
    judged = [_metric(measured) for measured in outcome.measured if _is_judged(measured)]
    others = ", ".join(_metric(measured) for measured in outcome.measured if not _is_judged(measured))
    for place, text in enumerate([*judged, *([others] if others else [])]):
        yield "reached" if place == 0 else "", text


def _figures(outcome: RunOutcome) -> Iterator[Row]:
    record = outcome.record
    if record.ended_at is not None:
        yield "cost", _cost(outcome)
    if record.outputs:
        yield "outputs", f"{plural(len(record.outputs), 'file')} in {_short_path(outcome.outputs)}"
    for note in outcome.notes:
        if note not in outcome.lost:  # these have a row of their own
            yield "note", note


def _short_path(path: str) -> str:
    """Return a path as a user writes it: with `~` for the home directory."""
    home = f"{Path.home()}/"
    return f"~/{path.removeprefix(home)}" if path.startswith(home) else path


def _next(outcome: RunOutcome) -> Iterator[Row]:
    run_id = outcome.record.run_id
    yield "logs", command("cloudgpu", "logs", run_id)
    if outcome.record.state == "running":
        yield "finish", command("cloudgpu", "attach", run_id)
        yield "cancel", command("cloudgpu", "cancel", run_id)
    if outcome.lost_nodes:
        yield "continue", what_is_lost(outcome.record, uploaded=outcome.has_checkpoint)
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


def _is_judged(measured: Measured) -> bool:
    """Return True for a metric with a target or a reference, which gets a row of its own."""
    metric = measured.metric
    return any(limit is not None for limit in (metric.at_least, metric.at_most, metric.reference))


def _metric(measured: Measured) -> str:
    if measured.value is None:
        return f"{measured.name}: {_why_none(measured)}"
    text = f"{measured.name} {measured.value:g} {measured.metric.unit}".rstrip() + _taken(measured)
    text += _limits(measured)
    if measured.metric.reference is not None and measured.share is not None:
        reference = measured.metric.reference
        text += f", {measured.share:.0%} of the reference {reference.value:g}: {reference.on} ({reference.source})"
    return text


def _limits(measured: Measured) -> str:
    """Format the limit that the metric missed, or the limits that it has to meet."""
    low, high = measured.metric.at_least, measured.metric.at_most
    if high is not None and measured.is_too_high:
        return f" (above the allowed {high:g})"
    if low is not None and measured.missed_target:
        return f" (below the required {low:g})"
    limits = [] if low is None else [f"at least {low:g}"]
    limits += [] if high is None else [f"at most {high:g}"]
    return f" ({', '.join(limits)})" if limits else ""


def _why_none(measured: Measured) -> str:
    if measured.unknown:
        return f"unknown, because {measured.unknown}"
    if not measured.printed:
        return "never printed"
    printed, skipped = plural(measured.printed, "time"), measured.metric.skip
    first = "first value of each rank is" if skipped == 1 else f"first {skipped} values of each rank are"
    return f"printed {printed}, but the {first} skipped"


def _taken(measured: Measured) -> str:
    """Format how a metric was computed from several values; empty for the last value of the first rank, the default."""
    several = measured.counted > 1 and measured.metric.take != "last"
    how = [f"{measured.metric.take} of {measured.counted}"] if several else []
    return f" ({', '.join([*how, *_together(measured)])})" if how or _together(measured) else ""


def _together(measured: Measured) -> list[str]:
    return [] if measured.metric.over_ranks == "first" else [f"{measured.metric.over_ranks} over the ranks"]


def _cost(outcome: RunOutcome) -> str:
    if outcome.simulated:
        return f"{money(outcome.usd)} (simulated; nothing was charged)"
    return money(outcome.usd)
