"""Wait for the bootstrap of every node, and check the node's health before files are staged on it.

The limit of the bootstrap depends on what the node's image lacks, which the steps in the node's report show. So it
needs no record of the image, and a cluster of an earlier version gets the same limits.

| path | limit | what takes the time |
|---|---|---|
| baked image | 10 minutes | only checks, but the first step may wait while apt ends an upgrade |
| image with a driver | 20 minutes | packages: apt waits up to 10 minutes for its lock, mirrors can be slow |
| plain Ubuntu | 30 minutes | 1 GB of driver packages, or a build of the kernel modules on a few cores |
| plain Ubuntu with EFA | 45 minutes | the EFA archive of 627 MB and its kernel module |

Storage adds 10 minutes (a volume may take 5 minutes to appear, Lustre needs packages), every reboot 5 minutes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cloudgpu.clock import Clock
from cloudgpu.decoding import malformed_as
from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.run.agent import Agent, count_field
from cloudgpu.run.progress import Note, Report
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.text import duration_text, plural, printable

REBOOT_S = 300
"""Seconds that a node may be unreachable while the bootstrap reboots it."""
_CHECKS_S = 600
_PACKAGES_S = 600
_STORAGE_S = 600
_LONG_STEPS_S: Mapping[str, int] = {"driver": 600, "efa": 900, "efa_plugin": 900}
"""Seconds in addition to `_PACKAGES_S` for the steps that download or build much."""
_STORAGE_STEPS = ("mount_", "lustre")
_LONGEST_STEP = 60
_BEGIN_LIMIT_S = 120
"""Seconds within which the bootstrap must start. A node that does not run its user data has no expiry timer either."""
_POLL_S = 2.0
_SHOW_S = 30.0
"""Seconds after which the progress of a step is reported again."""
_MIN_DISK_MIB = 512
_CUDA_HINT = (
    "on the node, see `systemctl status nvidia-fabricmanager` and `dmesg`; Fabric Manager needs exactly the driver's "
    "version: use another machine image (--set resources.image=...)"
)
_LONGEST_GROUP = 32
"""Linux's limit on the length of a group name."""
_RELAUNCH = "delete the cluster with `cloudgpu down`, then run `cloudgpu train` again to launch new nodes"


@dataclass(frozen=True)
class Health:
    """The health of one node. If `simulated`, the hardware data comes from the catalog instead of from devices.

    Attributes:
        efa: Number of EFA devices.
        cuda: `ok`, or `unknown` if the node has no CUDA library to check; empty without GPUs.
        new_groups: Groups that the login user was added to after the connection was opened.
    """

    node: int
    python: str
    gpus: tuple[str, ...]
    disk_free_mib: int
    simulated: bool
    efa: int = 0
    cuda: str = ""
    new_groups: tuple[str, ...] = ()


def check_nodes(agents: Sequence[Agent], clock: Clock, report: Report) -> tuple[Health, ...]:
    """Wait for every node's bootstrap, then compare each node with its instance type."""
    hosts = [agent.host for agent in agents]
    by_index = {agent.host.node.index: agent for agent in agents}
    answers = run_on_all(hosts, lambda host: _ready(by_index[host.node.index], clock, report))
    healthy = tuple(all_or_raise(answers).values())
    _log_in_again(hosts, healthy, report)
    return healthy


def _log_in_again(hosts: Sequence[Host], healthy: Sequence[Health], report: Report) -> None:
    """Close the connections if the bootstrap added the login user to a group, such as `docker`.

    A server sets the groups of a connection at login, so only a new connection has them; the next command opens it.
    Connections through other nodes are closed first, and none while another node is still being checked.
    """
    added = sorted({group for health in healthy for group in health.new_groups})
    if not added:
        return
    report(Note(f"logging in again, because the bootstrap added the login user to {', '.join(added)}"))
    for host in sorted(hosts, key=lambda host: host.node.jump is None):
        host.close()


def _ready(agent: Agent, clock: Clock, report: Report) -> Health:
    node = agent.host.node
    started = clock.monotonic()
    shown: tuple[str, ...] = ()
    shown_at_s = 0.0
    probes = _probe_repeatedly(agent, clock)
    while True:
        facts = next(probes)
        state = str(facts.get("bootstrap", "none"))
        if state in ("done", "failed") or node.own:
            with malformed_as(partial(_malformed, node)):
                _report_step_times(node, facts, report, waited=bool(shown))
                return _check_facts(node, facts)
        elapsed_s = clock.monotonic() - started
        with malformed_as(partial(_malformed, node)):
            _require_in_time(node, facts, elapsed_s)
            line = _progress_line(facts, elapsed_s)
        progress = (state, str(facts.get("bootstrap_step") or ""))
        if progress != shown or elapsed_s - shown_at_s >= _SHOW_S:
            report(Note(line, node.index, detail=True))
            shown, shown_at_s = progress, elapsed_s
        clock.sleep(_POLL_S)


def _require_in_time(node: Node, facts: Mapping[str, Any], elapsed_s: float) -> None:
    """Check that the bootstrap has not reached its time limit."""
    begun = str(facts.get("bootstrap", "none")) != "none"
    limit_s = _bootstrap_limit_s(facts) if begun else _BEGIN_LIMIT_S
    if elapsed_s > limit_s:
        step = _current_step(facts)
        at = f", which is at step {step}," if step else ""
        missing = f"bootstrap{at} has not finished" if begun else "bootstrap has not started"
        raise _unhealthy(node, f"its {missing} after {duration_text(limit_s)}")


def _bootstrap_limit_s(facts: Mapping[str, Any]) -> int:
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


def _progress_line(facts: Mapping[str, Any], elapsed_s: float) -> str:
    """Describe a bootstrap that is not finished: its step, the time since the caller began to wait, and the limit."""
    state = str(facts.get("bootstrap", "none"))
    if state == "none":
        return "waiting for the bootstrap to start"
    step = _current_step(facts)
    verb = "is rebooting the node" if state == "rebooting" else "is running"
    times = f"{duration_text(elapsed_s)} of at most {duration_text(_bootstrap_limit_s(facts))}"
    return f"bootstrap {verb}{f': {step}' if step else ''} ({times})"


def _current_step(facts: Mapping[str, Any]) -> str:
    """Return the name of the bootstrap's current step, safe to print; empty before the first step."""
    return printable(str(facts.get("bootstrap_step") or ""))[:_LONGEST_STEP]


def _probe_repeatedly(agent: Agent, clock: Clock) -> Iterator[Mapping[str, Any]]:
    """Probe the node repeatedly. A node that reboots during its bootstrap may be unreachable for a while."""
    last: Mapping[str, Any] = {}
    last_contact = clock.monotonic()
    while True:
        try:
            last = agent.ask("probe", {})
            last_contact = clock.monotonic()
        except ConnectError as err:
            booting = last.get("bootstrap") in ("running", "rebooting")
            if not err.retryable or not booting or clock.monotonic() - last_contact > REBOOT_S:
                raise
            last = {**last, "bootstrap": "rebooting"}
        yield last


def _report_step_times(node: Node, facts: Mapping[str, Any], report: Report, *, waited: bool) -> None:
    """Report the duration of the bootstrap steps if the caller had to wait for them."""
    steps = [
        (str(step.get("name", "")), count_field(step, "seconds", 0)) for step in facts.get("bootstrap_steps") or ()
    ]
    total_s = sum(seconds for _, seconds in steps)
    if waited and total_s:
        parts = ", ".join(f"{name} {seconds} s" for name, seconds in steps if seconds)
        report(Note(f"bootstrap took {total_s} s: {parts}", node.index, detail=True))


def _check_facts(node: Node, facts: Mapping[str, Any]) -> Health:
    """Compare the probed facts with the node's instance type."""
    if facts.get("bootstrap") == "failed" and not node.own:
        failure = (
            f"its bootstrap failed at step {facts.get('bootstrap_step') or '?'}: {facts.get('bootstrap_error') or '?'}"
        )
        hint = _CUDA_HINT if facts.get("bootstrap_step") == "fabric" else _RELAUNCH
        raise _unhealthy(node, f"{failure} (see /var/lib/cloudgpu/bootstrap.log on the node)", hint)
    present = list(facts.get("gpus", ()))
    used = [present[at] for at in node.devices if at < len(present)] if node.devices else present
    gpus = tuple(str(gpu["name"]) for gpu in used)
    if len(gpus) != node.gpus:
        error = f" ({facts['gpu_error']})" if facts.get("gpu_error") else ""
        raise _unhealthy(
            node, f"it has {plural(len(gpus), 'GPU')} instead of {node.gpus} ({node.instance_type}){error}"
        )
    broken = [str(gpu["name"]) for gpu in used if count_field(gpu, "ecc_errors", 0) > 0]
    if broken:
        raise _unhealthy(node, f"uncorrected ECC errors on {', '.join(broken)}")
    cuda = _cuda_state(node, facts)
    efa = _efa_devices(node, facts)
    free_mib = count_field(facts, "disk_free_mib", 0)
    if free_mib < _MIN_DISK_MIB:
        raise _unhealthy(node, f"only {free_mib} MiB of disk space is free")
    groups = () if node.own else tuple(printable(str(group))[:_LONGEST_GROUP] for group in facts.get("new_groups", ()))
    return Health(node.index, str(facts.get("python", "")), gpus, free_mib, node.simulated, efa, cuda, groups)


def _cuda_state(node: Node, facts: Mapping[str, Any]) -> str:
    """Return whether CUDA initializes.

    Without Fabric Manager, nvidia-smi works on nodes with NVSwitch, but CUDA fails.
    """
    if not node.gpus:
        return ""
    cuda = facts.get("cuda") or {}
    if cuda.get("state") == "failed":
        raise _unhealthy(node, str(cuda.get("reason") or "CUDA does not initialize"), hint=_CUDA_HINT)
    return "ok" if cuda.get("state") == "ok" else "unknown"


def _efa_devices(node: Node, facts: Mapping[str, Any]) -> int:
    """Return the number of EFA devices, which must be the planned number: without a device, NCCL silently uses TCP."""
    devices = tuple(str(device) for device in facts.get("efa", ()))
    if node.efa and len(devices) != node.efa:
        found = f"{plural(len(devices), 'EFA device')} instead of {node.efa} ({node.instance_type})"
        names = f": {', '.join(devices)}" if devices else ""
        raise _unhealthy(
            node,
            f"it has {found}{names}",
            hint="check the kernel module with `modinfo efa` on the node and the bootstrap's efa step in "
            "/var/lib/cloudgpu/bootstrap.log, or train over TCP: --set resources.network=tcp",
        )
    return len(devices)


def _malformed(node: Node, why: str) -> RemoteCommandError:
    return _unhealthy(node, f"its health report is malformed: {why}")


def _unhealthy(node: Node, why: str, hint: str = _RELAUNCH) -> RemoteCommandError:
    return RemoteCommandError(f"node {node.index} ({node.instance_id}, {node.zone}) is not ready: {why}", hint=hint)
