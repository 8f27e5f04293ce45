"""The health check that every node must pass before files are staged on it. The check fails closed."""

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
from cloudgpu.ssh.fanout import all_or_raise, run_on_all

_BOOTSTRAP_LIMIT_S = 900
_BEGIN_LIMIT_S = 120
"""Seconds within which the bootstrap must start. A node that does not run its user data has no expiry timer either."""
_REBOOT_LIMIT_S = 300
"""Seconds that a node may be unreachable while the bootstrap reboots it."""
_WHY = ("not finished", "not started")
_POLL_S = 2.0
_MIN_DISK_MIB = 512


@dataclass(frozen=True)
class Health:
    """The health of one node. If `simulated`, the hardware data comes from the catalog instead of from devices."""

    node: int
    python: str
    gpus: tuple[str, ...]
    disk_free_mib: int
    simulated: bool


def check_nodes(agents: Sequence[Agent], clock: Clock, report: Report) -> tuple[Health, ...]:
    """Wait for every node's bootstrap, then compare each node with its instance type.

    Raises:
        RemoteCommandError: A node's bootstrap failed or its hardware is incomplete; the message names the node.
        ConnectError: A node cannot be reached.
    """
    hosts = [agent.host for agent in agents]
    by_index = {agent.host.node.index: agent for agent in agents}
    answers = run_on_all(hosts, lambda host: _ready(by_index[host.node.index], clock, report))
    return tuple(all_or_raise(answers).values())


def _ready(agent: Agent, clock: Clock, report: Report) -> Health:
    node = agent.host.node
    started = clock.monotonic()
    last_message = ""
    probes = _probe_repeatedly(agent, clock)
    while True:
        facts = next(probes)
        state = str(facts.get("bootstrap", "none"))
        if state in ("done", "failed") or node.own:
            with malformed_as(partial(_malformed, node)):
                _report_step_times(node, facts, report, waited=bool(last_message))
                return _check_facts(node, facts)
        limit_s = _BEGIN_LIMIT_S if state == "none" else _BOOTSTRAP_LIMIT_S
        if clock.monotonic() - started > limit_s:
            raise _unhealthy(node, f"its bootstrap has {_WHY[state == 'none']} after {limit_s // 60} minutes")
        waiting = _waiting(state, facts)
        if waiting != last_message:
            report(Note(waiting, node.index))
            last_message = waiting
        clock.sleep(_POLL_S)


def _probe_repeatedly(agent: Agent, clock: Clock) -> Iterator[Mapping[str, Any]]:
    """Probe the node repeatedly. A node that reboots during its bootstrap may be unreachable for a while.

    Raises:
        ConnectError: The node is unreachable and not rebooting.
    """
    last: Mapping[str, Any] = {}
    last_contact = clock.monotonic()
    while True:
        try:
            last = agent.ask("probe", {})
            last_contact = clock.monotonic()
        except ConnectError:
            booting = last.get("bootstrap") in ("running", "rebooting")
            if not booting or clock.monotonic() - last_contact > _REBOOT_LIMIT_S:
                raise
            last = {**last, "bootstrap": "rebooting"}
        yield last


def _waiting(state: str, facts: Mapping[str, Any]) -> str:
    if state == "none":
        return "waiting for the bootstrap to start"
    step = str(facts.get("bootstrap_step") or "")
    verb = "is rebooting the node" if state == "rebooting" else "is running"
    return f"bootstrap {verb}{f': {step}' if step else ''}"


def _report_step_times(node: Node, facts: Mapping[str, Any], report: Report, *, waited: bool) -> None:
    """Report the duration of the bootstrap steps if the caller had to wait for them."""
    steps = [
        (str(step.get("name", "")), count_field(step, "seconds", 0)) for step in facts.get("bootstrap_steps") or ()
    ]
    total_s = sum(seconds for _, seconds in steps)
    if waited and total_s:
        parts = ", ".join(f"{name} {seconds} s" for name, seconds in steps if seconds)
        report(Note(f"bootstrap took {total_s} s: {parts}", node.index))


def _check_facts(node: Node, facts: Mapping[str, Any]) -> Health:
    """Compare the probed facts with the node's instance type.

    Raises:
        RemoteCommandError: The node is not healthy.
    """
    if facts.get("bootstrap") == "failed" and not node.own:
        failure = (
            f"its bootstrap failed at step {facts.get('bootstrap_step') or '?'}: {facts.get('bootstrap_error') or '?'}"
        )
        raise _unhealthy(node, f"{failure} (see /var/lib/cloudgpu/bootstrap.log on the node)")
    present = list(facts.get("gpus", ()))
    used = [present[at] for at in node.devices if at < len(present)] if node.devices else present
    gpus = tuple(str(gpu["name"]) for gpu in used)
    if len(gpus) != node.gpus:
        error = f" ({facts['gpu_error']})" if facts.get("gpu_error") else ""
        raise _unhealthy(node, f"it has {len(gpus)} GPUs instead of {node.gpus} ({node.instance_type}){error}")
    broken = [str(gpu["name"]) for gpu in used if count_field(gpu, "ecc_errors", 0) > 0]
    if broken:
        raise _unhealthy(node, f"uncorrected ECC errors on {', '.join(broken)}")
    free_mib = count_field(facts, "disk_free_mib", 0)
    if free_mib < _MIN_DISK_MIB:
        raise _unhealthy(node, f"only {free_mib} MiB of disk space is free")
    return Health(node.index, str(facts.get("python", "")), gpus, free_mib, node.simulated)


def _malformed(node: Node, why: str) -> RemoteCommandError:
    return _unhealthy(node, f"its health report is malformed: {why}")


def _unhealthy(node: Node, why: str) -> RemoteCommandError:
    return RemoteCommandError(
        f"node {node.index} ({node.instance_id}, {node.zone}) is not ready: {why}",
        hint="delete the cluster with `cloudgpu down`, then run `cloudgpu train` again: it launches new nodes",
    )
