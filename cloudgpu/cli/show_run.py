"""The last panel of a run, and what ended, as text."""

from cloudgpu.app.outcome import RunOutcome
from cloudgpu.app.running import Followed
from cloudgpu.app.teardown import Ended
from cloudgpu.cli.screen import Screen, printable
from cloudgpu.errors import RemoteCommandError
from cloudgpu.run.metrics import Measured

_INTERRUPTED = 130


def exit_code(outcome: RunOutcome) -> int:
    """0 for a run that succeeded, was left running on purpose, or could only be rehearsed; 5 for a failed one."""
    state = outcome.record.state
    if state in ("succeeded", "not-run"):
        return 0
    if state == "running":
        return 0 if outcome.kept == "detached" else _INTERRUPTED
    if outcome.record.reason == "interrupted":
        return _INTERRUPTED
    return 0 if state == "preparing" else RemoteCommandError.exit_code


def outcome_lines(outcome: RunOutcome) -> list[str]:
    """What ran, how long each stage took, what it cost, what it reached, what is left."""
    record = outcome.record
    mark = "  (simulated)" if outcome.simulated else ""
    machines = f"{outcome.nodes} x {outcome.instance_type} {outcome.zone}{mark}" if outcome.nodes else "no cluster"
    rows = [
        ("run", f"{record.run_id}: {record.state}{f' ({record.reason})' if record.reason else ''}"),
        ("on", machines),
        ("took", "  ".join(f"{name} {seconds:.1f} s" for name, seconds in record.stages)),
        *(("reached", _metric(one)) for one in outcome.measured),
        ("cost", _cost(outcome)),
    ]
    if record.outputs:
        rows.append(("outputs", f"{len(record.outputs)} files in {outcome.outputs}"))
    rows.append(("logs", f"cloudgpu logs {record.run_id}"))
    rows.append(("left", "; ".join(outcome.left) or "nothing"))
    lines = ["", *_box(rows)]
    if record.failed_rank is not None and record.state != "succeeded":
        lines += [f"rank {record.failed_rank} ended first (exit code {record.exit_code}); its last lines:"]
        lines += [f"  {printable(line)}" for line in outcome.tail]
    return lines


def ended_lines(ended: Ended) -> list[str]:
    """What `down` confirmed."""
    mark = " (simulated)" if ended.simulated else ""
    if not ended.known and not ended.strays:
        return [f"no cluster {ended.cluster}: nothing carries its tag, nothing to end"]
    lines = [f"cluster {ended.cluster} is gone, confirmed by a search for its tag: ${ended.usd}{mark}"]
    lines += [f"  ended {one}" for one in (*ended.instances, *ended.strays)]
    return lines


def followed_code(followed: Followed, screen: Screen) -> int:
    """The exit code of a `logs -f` that saw the end, after saying how it ended."""
    verdict = followed.verdict
    if verdict.succeeded:
        screen.line("the run succeeded; `cloudgpu attach` brings its outputs back and ends its cluster")
        return 0
    where = "" if verdict.rank is None else f": rank {verdict.rank} ended with {verdict.exit_code}"
    screen.line(f"the run {verdict.state}{where} {verdict.reason}".rstrip())
    return RemoteCommandError.exit_code


def _metric(one: Measured) -> str:
    if one.value is None:
        return f"{one.name}: never printed"
    text = f"{one.name} {one.value:g} {one.metric.unit}".rstrip()
    if one.metric.reference is not None and one.share is not None:
        reference = one.metric.reference
        text += f" = {one.share:.0%} of {reference.value:g} on {reference.on} ({reference.source})"
    if one.metric.at_least is not None:
        text += f", {'below' if one.missed else 'at least'} {one.metric.at_least:g}"
    return text


def _cost(outcome: RunOutcome) -> str:
    if outcome.simulated:
        return f"${outcome.usd} on AWS (simulated: nothing was charged)"
    return f"${outcome.usd}"


def _box(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {text}" for name, text in rows]
