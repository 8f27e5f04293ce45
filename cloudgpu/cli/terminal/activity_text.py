"""Describe work that takes a while: how much is done, for how long it has run, and how long it may run."""

from cloudgpu.cli.terminal.number_format import duration
from cloudgpu.run import bootstrap_progress
from cloudgpu.run.progress import Activity
from cloudgpu.text import size_text

_MINUTE_S = 60
_LEAST_S = 2.0
"""Seconds after which a rate is meaningful."""


def elapsed_text(seconds: float) -> str:
    """Format a running time in whole seconds: `7 s`, `2 min 05 s`, `1 h 02 min`."""
    whole = max(0, int(seconds))
    return f"{whole} s" if whole < _MINUTE_S else duration(whole)


def activity_text(activity: Activity, elapsed_s: float) -> str:
    """Return one line about the work, such as `node 1: copying data: 1.2 GiB of 4.0 GiB, 12 s, 102.4 MiB/s, 28 s left`.

    Rate and remaining time are shown for bytes, once they are meaningful.
    """
    where = "" if activity.node is None else f"node {activity.node}: "
    parts = [*_amount(activity), _time(activity, elapsed_s), *_rate(activity, elapsed_s)]
    if activity.last:
        parts.append(activity.last)
    return f"{where}{activity.name}: {', '.join(parts)}"


def _amount(activity: Activity) -> list[str]:
    if activity.done is None:
        return []
    if activity.unit == "B":
        done = size_text(activity.done)
        return [done if activity.total is None else f"{done} of {size_text(activity.total)}"]
    done = f"{activity.done}" if activity.total is None else f"{activity.done} of {activity.total}"
    return [f"{done} {activity.unit}".rstrip()]


def _time(activity: Activity, elapsed_s: float) -> str:
    at_most = "" if activity.limit_s is None else f" of at most {bootstrap_progress.duration(activity.limit_s)}"
    return f"{elapsed_text(elapsed_s)}{at_most}"


def _rate(activity: Activity, elapsed_s: float) -> list[str]:
    if activity.unit != "B" or not activity.done or elapsed_s < _LEAST_S:
        return []
    rate = activity.done / elapsed_s
    parts = [f"{size_text(int(rate))}/s"]
    if activity.total is not None and activity.total > activity.done:
        parts.append(f"{elapsed_text((activity.total - activity.done) / rate)} left")
    return parts
