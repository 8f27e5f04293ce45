"""How long a node's bootstrap may take, and how its progress is described.

The limit depends on what the node's image lacks, which the steps in the node's report show. So it needs no record of
the image, and a cluster of an earlier version gets the same limits.

| path | limit | what takes the time |
|---|---|---|
| baked image | 10 minutes | only checks, but the first step may wait while apt ends an upgrade |
| image with a driver | 20 minutes | packages: apt waits up to 10 minutes for its lock, mirrors can be slow |
| plain Ubuntu | 30 minutes | 1 GB of driver packages, or a build of the kernel modules on a few cores |
| plain Ubuntu with EFA | 45 minutes | the EFA archive of 627 MB and its kernel module |

Storage adds 10 minutes (a volume may take 5 minutes to appear, Lustre needs packages), every reboot 5 minutes.
"""

from collections.abc import Mapping
from typing import Any

from cloudgpu.text import printable

REBOOT_S = 300
"""Seconds that a node may be unreachable while the bootstrap reboots it."""
_CHECKS_S = 600
_PACKAGES_S = 600
_STORAGE_S = 600
_LONG_STEPS_S: Mapping[str, int] = {"driver": 600, "efa": 900, "efa_plugin": 900}
"""Seconds in addition to `_PACKAGES_S` for the steps that download or build much."""
_STORAGE_STEPS = ("mount_", "lustre")
_MINUTE_S = 60
_LONGEST_STEP = 60


def bootstrap_limit_s(facts: Mapping[str, Any]) -> int:
    """Return how many seconds the bootstrap may take, according to the steps that the node's `probe` reports.

    The running step counts as work until the node reports it as skipped.
    """
    steps = [(str(step.get("name", "")), str(step.get("state", ""))) for step in facts.get("bootstrap_steps") or ()]
    working = {name for name, state in steps if state != "skipped"}
    # A step may say in parentheses what it waits for, such as internet access.
    current = str(facts.get("bootstrap_step") or "").partition(" ")[0]
    if current and current not in {name for name, state in steps if state == "skipped"}:
        working.add(current)
    reboots = sum(state == "rebooting" for _, state in steps)
    return (
        _CHECKS_S
        + (_PACKAGES_S if working else 0)
        + sum(seconds for name, seconds in _LONG_STEPS_S.items() if name in working)
        + (_STORAGE_S if any(name.startswith(_STORAGE_STEPS) for name in working) else 0)
        + reboots * REBOOT_S
    )


def progress_line(facts: Mapping[str, Any], elapsed_s: float) -> str:
    """Describe a bootstrap that is not finished: its step, the time since the caller began to wait, and the limit."""
    state = str(facts.get("bootstrap", "none"))
    if state == "none":
        return "waiting for the bootstrap to start"
    step = current_step(facts)
    verb = "is rebooting the node" if state == "rebooting" else "is running"
    times = f"{duration(elapsed_s)} of at most {duration(bootstrap_limit_s(facts))}"
    return f"bootstrap {verb}{f': {step}' if step else ''} ({times})"


def current_step(facts: Mapping[str, Any]) -> str:
    """Return the name of the bootstrap's current step, safe to print; empty before the first step."""
    return printable(str(facts.get("bootstrap_step") or ""))[:_LONGEST_STEP]


def duration(seconds: float) -> str:
    """Format a duration in the units of a wait: `45 s`, `12 min`, `12 min 30 s`."""
    minutes, rest_s = divmod(int(seconds), _MINUTE_S)
    if not minutes:
        return f"{rest_s} s"
    return f"{minutes} min{f' {rest_s} s' if rest_s else ''}"
