"""Decide whether an existing cluster can run a plan."""

from dataclasses import dataclass

from cloudgpu.backends.context import CloudContext, Context
from cloudgpu.backends.deletion import check_identity
from cloudgpu.errors import BusyError, StateError, UsageError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.plan.plan import Plan
from cloudgpu.state.attached_storage import lacking
from cloudgpu.state.cluster_and_run_records import ClusterRecord
from cloudgpu.text import command

ALIVE = frozenset({"running", "pending"})
HARMLESS = frozenset({"same", "read", "update"})
"""What may be done to the resources of a cluster that people work on."""


@dataclass(frozen=True)
class ProvisionedCluster:
    """A running cluster."""

    record: ClusterRecord
    inventory: Inventory
    made: bool
    """Whether this call made it."""
    tried: tuple[str, ...] = ()
    """One line for every candidate that could not be had."""


def find_running_cluster(context: Context, name: str) -> ClusterRecord:
    """Return the record of a running cluster that may be used from here.

    Raises:
        UsageError: The cluster does not exist, is not running, or has expired.
        StateError: The cluster belongs to another account or endpoint.
        BusyError: The cluster is being deleted.
    """
    record = context.records.cluster(name)
    if record is None or record.state != "up":
        message = f"there is no cluster {name} that is up" if record is None else f"cluster {name} is {record.state}"
        raise UsageError(message, hint="`cloudgpu status` lists the clusters")
    require_usable(context, record)
    return record


def require_usable(context: Context, record: ClusterRecord) -> None:
    """Refuse a cluster that is another cloud's, is over, or is being ended.

    Raises:
        StateError: Another account or endpoint.
        BusyError: It is being ended.
        UsageError: It has expired.
    """
    check_identity(record, context.cloud)
    if record.state == "ending":
        raise BusyError(f"cluster {record.name} is being deleted", hint=command("cloudgpu", "down", record.name))
    if record.expires_at <= context.clock.now():
        raise UsageError(
            f"cluster {record.name} expired at {record.expires_at:%Y-%m-%d %H:%M} UTC; its nodes have powered off",
            hint=command("cloudgpu", "down", record.name),
        )


def require_same_engine(context: CloudContext, record: ClusterRecord) -> None:
    """Reject a cluster that another engine created.

    The engines keep separate state, so neither can update or delete the other's resources.

    Raises:
        UsageError: The requested engine differs from the one that created the cluster.
    """
    asked = context.cloud.engine_asked_for
    if asked and asked != record.engine:
        message = f"cluster {record.name} was made by the {record.engine} engine, not the {asked} engine"
        same, end = command("--engine", record.engine), command("cloudgpu", "down", record.name)
        hint = f"{same}; or `{end}` first, which selects the engine itself"
        raise UsageError(message, hint=hint)


def matches(plan: Plan, record: ClusterRecord) -> bool:
    """Return True if the cluster has the plan's nodes and, once running, mounts its storage."""
    if record.state == "up" and lacking(plan.recipe, record.storage):
        return False
    return record.nodes == plan.nodes and record.instance_type in {
        candidate.instance_type for candidate in plan.candidates
    }


def require_matching(plan: Plan, record: ClusterRecord) -> None:
    """Refuse a cluster of another shape.

    Raises:
        UsageError: It has other nodes than the plan asks for.
    """
    missing = lacking(plan.recipe, record.storage) if record.state == "up" else []
    if missing:
        message = f"the nodes of cluster {record.name} do not mount storage {', '.join(missing)} as the recipe does"
        raise UsageError(message, hint="another name with --name or --cluster: storage is mounted when nodes boot")
    if not matches(plan, record):
        wanted = " or ".join(sorted({candidate.instance_type for candidate in plan.candidates}))
        half = "half-made " if record.state == "making" else ""
        raise UsageError(
            f"{half}cluster {record.name} is {record.nodes} x {record.instance_type}, "
            f"not the {plan.nodes} x {wanted} requested",
            hint=f"another name with --name, or `{command('cloudgpu', 'down', record.name)}` first",
        )


def require_all_nodes_running(context: Context, record: ClusterRecord) -> None:
    """Refuse a cluster that lost nodes.

    Raises:
        StateError: Some are gone; they are named.
    """
    states = context.cloud.nodes_alive(record.region, record.instance_ids)
    dead = [f"{node} is {state}" for node, state in states.items() if state not in ALIVE]
    if dead or not states:
        message = f"cluster {record.name} is incomplete: {', '.join(dead) or 'it has no nodes'}"
        raise StateError(message, hint=command("cloudgpu", "down", record.name))
