"""Decide whether an existing cluster can run a plan."""

from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.deletion import check_identity
from cloudgpu.errors import BusyError, StateError, UsageError
from cloudgpu.launch.inventory import ALIVE_STATES
from cloudgpu.plan.plan import Plan
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.storage_records import missing_storage
from cloudgpu.text import command

IN_PLACE_OPERATIONS = frozenset({"same", "read", "update"})
"""Resource operations that are safe on a cluster that is in use."""


def find_running_cluster(context: Context, name: str) -> ClusterRecord:
    """Return the record of a running cluster that the current credentials may use."""
    record = context.records.cluster(name)
    if record is None or record.state != "up":
        message = (
            f"there is no running cluster {name}"
            if record is None
            else f"cluster {name} is not running (state: {record.state})"
        )
        raise UsageError(message, hint="run `cloudgpu status` to list the clusters")
    require_usable(context, record)
    return record


def require_usable(context: Context, record: ClusterRecord) -> None:
    """Reject a cluster that belongs to another account or endpoint, is being deleted, or has expired."""
    check_identity(record, context.backend)
    if record.state == "ending":
        raise BusyError(f"cluster {record.name} is being deleted", hint=command("cloudgpu", "down", record.name))
    expiry = record.lifecycle.expires_at
    if expiry <= context.clock.now():
        raise UsageError(
            f"cluster {record.name} expired at {expiry:%Y-%m-%d %H:%M} UTC; its nodes have powered off",
            hint=command("cloudgpu", "down", record.name),
        )


def matches(plan: Plan, record: ClusterRecord) -> bool:
    """Return True if the cluster has the plan's nodes and, if it is running, mounts the plan's storage."""
    if record.state == "up" and missing_storage(plan.recipe, record.placement.storage):
        return False
    return record.placement.nodes == plan.nodes and record.placement.instance_type in {
        candidate.instance_type for candidate in plan.candidates
    }


def require_matching(plan: Plan, record: ClusterRecord) -> None:
    """Reject a cluster whose nodes or storage do not match the plan."""
    missing = missing_storage(plan.recipe, record.placement.storage) if record.state == "up" else []
    if missing:
        message = f"the nodes of cluster {record.name} do not mount storage {', '.join(missing)} as the recipe requires"
        raise UsageError(
            message, hint="choose another name with --name or --cluster, because storage is mounted when nodes boot"
        )
    if not matches(plan, record):
        requested = " or ".join(sorted({candidate.instance_type for candidate in plan.candidates}))
        incomplete = "partially created " if record.state == "making" else ""
        raise UsageError(
            f"{incomplete}cluster {record.name} is {record.placement.nodes} x {record.placement.instance_type}, "
            f"not the {plan.nodes} x {requested} requested",
            hint=f"choose another name with --name, or run `{command('cloudgpu', 'down', record.name)}` first",
        )


def require_all_nodes_running(context: Context, record: ClusterRecord) -> None:
    """Reject a cluster that has lost nodes."""
    states = context.backend.instance_states(record.placement.region, record.placement.instance_ids)
    lost = [f"{node} is {state}" for node, state in states.items() if state not in ALIVE_STATES]
    if lost or not states:
        message = f"cluster {record.name} is incomplete: {', '.join(lost) or 'no nodes'}"
        raise StateError(message, hint=command("cloudgpu", "down", record.name))
