"""A cluster that stands: how it is read back, and what it must be to be used again."""

import json
from dataclasses import dataclass, replace

from cloudgpu.app.desk import Desk
from cloudgpu.app.records import ClusterRecord
from cloudgpu.app.teardown import check_identity, stack_of
from cloudgpu.errors import BusyError, ConnectError, StateError, UsageError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.paths import Home
from cloudgpu.plan.plan import Plan
from cloudgpu.provision.lease import Lease
from cloudgpu.run.progress import Note

ALIVE = frozenset({"running", "pending"})
HARMLESS = frozenset({"same", "read", "update"})
"""What may be done to the resources of a cluster that people work on."""


@dataclass(frozen=True)
class Standing:
    """A cluster that stands."""

    record: ClusterRecord
    inventory: Inventory
    made: bool
    """Whether this call made it."""
    tried: tuple[str, ...] = ()
    """One line for every candidate that could not be had."""


def stored_inventory(home: Home, record: ClusterRecord) -> Inventory:
    """The nodes as last seen.

    Raises:
        StateError: The file is missing or damaged.
    """
    path = home.cluster(record.name).inventory
    try:
        return Inventory.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError) as err:
        message = f"the inventory {path} cannot be read: {err}"
        raise StateError(message, hint=f"cloudgpu down {record.name}") from err


def check_own(desk: Desk, record: ClusterRecord) -> None:
    """Refuse a cluster that is another cloud's, is over, or is being ended.

    Raises:
        StateError: Another account or endpoint.
        BusyError: It is being ended.
        UsageError: It has expired.
    """
    check_identity(record, desk.cloud)
    if record.state == "ending":
        raise BusyError(f"cluster {record.name} is being ended", hint=f"cloudgpu down {record.name}")
    if record.expires_at <= desk.clock.now():
        raise UsageError(
            f"cluster {record.name} expired at {record.expires_at:%Y-%m-%d %H:%M} UTC; its nodes ended themselves",
            hint=f"cloudgpu down {record.name}",
        )


def check_engine(desk: Desk, record: ClusterRecord) -> None:
    """Refuse to carry a cluster on with another engine: neither knows what the other has made.

    Raises:
        UsageError: The user names another one than the cluster was begun with.
    """
    asked = desk.cloud.engine_asked_for
    if asked and asked != record.engine:
        message = f"cluster {record.name} was made by the {record.engine} engine, not the {asked} engine"
        hint = f"--engine {record.engine}; or `cloudgpu down {record.name}` first, which uses the right one by itself"
        raise UsageError(message, hint=hint)


def fits(plan: Plan, record: ClusterRecord) -> bool:
    """Whether it has the nodes that the plan asks for."""
    return record.nodes == plan.nodes and record.instance_type in {one.instance_type for one in plan.candidates}


def check_fits(plan: Plan, record: ClusterRecord) -> None:
    """Refuse a cluster of another shape.

    Raises:
        UsageError: It has other nodes than the plan asks for.
    """
    if not fits(plan, record):
        wanted = " or ".join(sorted({candidate.instance_type for candidate in plan.candidates}))
        half = "half-made " if record.state == "making" else ""
        raise UsageError(
            f"{half}cluster {record.name} is {record.nodes} x {record.instance_type}, "
            f"not the {plan.nodes} x {wanted} that is asked for",
            hint=f"another name with --name, or `cloudgpu down {record.name}` first",
        )


def check_alive(desk: Desk, record: ClusterRecord) -> None:
    """Refuse a cluster that lost nodes.

    Raises:
        StateError: Some are gone; they are named.
    """
    states = desk.cloud.nodes_alive(record.region, record.instance_ids)
    dead = [f"{node} is {state}" for node, state in states.items() if state not in ALIVE]
    if dead or not states:
        message = f"cluster {record.name} is no longer whole: {', '.join(dead) or 'it has no nodes'}"
        raise StateError(message, hint=f"cloudgpu down {record.name}")


def let_in(desk: Desk, record: ClusterRecord) -> ClusterRecord:
    """Open port 22 of a standing cluster to where the caller is now, when that has changed; nothing else is touched.

    Raises:
        BusyError: Another process is at this cluster.
        CloudError: The cloud refused.
    """
    cidr = _caller(desk, record)
    if cidr == record.config.get("sshCidr", cidr):
        return record
    with Lease(desk.home.cluster(record.name).root / "lease", desk.clock, desk.owner).hold(tidy=True):
        record = desk.records.cluster(record.name) or record
        moved = replace(record, config={**record.config, "sshCidr": cidr})
        engine, stack = desk.cloud.engine(moved), stack_of(desk.home, moved)
        grave = sorted({step.name for step in engine.preview(stack) if step.operation not in HARMLESS})
        if grave:
            # The program is newer than the cluster: carrying it out now would take nodes from under their users.
            desk.say(Note(f"port 22 stays open to {record.config['sshCidr']} only: {', '.join(grave)} would change"))
            return record
        desk.say(Note(f"opening port 22 to {cidr} instead of {record.config['sshCidr']}"))
        engine.up(stack, desk.say)
        return desk.records.save_cluster(moved, desk.clock.now())


def _caller(desk: Desk, record: ClusterRecord) -> str:
    """Where the caller is; where nobody can tell, it is taken to be where it was."""
    try:
        return desk.cloud.caller_cidr()
    except ConnectError as err:
        desk.say(Note(f"{err.message}; taken to be unchanged"))
        return record.config.get("sshCidr", "")
