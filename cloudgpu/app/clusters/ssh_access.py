"""Who gets in: port 22 follows the caller, and the rules in front of a cluster are those that its program made."""

from dataclasses import replace

from cloudgpu.app.clusters.delete import stack_of
from cloudgpu.backends.context import CloudContext
from cloudgpu.backends.deletion import check_identity
from cloudgpu.backends.reuse import HARMLESS
from cloudgpu.engine.lease import Lease
from cloudgpu.errors import BusyError, CloudGpuError, ConnectError
from cloudgpu.run.progress import Note
from cloudgpu.state.inventories import stored_inventory
from cloudgpu.state.records import ClusterRecord


def authorize_ssh(context: CloudContext, record: ClusterRecord) -> ClusterRecord:
    """Open port 22 of a standing cluster to where the caller is now, and put right what somebody did to its rules.

    Nothing else is touched.

    Raises:
        BusyError: The caller has moved, and another process is at this cluster.
        CloudError: The cloud refused.
    """
    cidr = caller(context, record)
    if cidr == record.config.get("sshCidr", cidr):
        _repair_drift(context, record)
        return record
    with _lease(context, record).hold(tidy=True):
        record = context.records.cluster(record.name) or record
        moved = replace(record, config={**record.config, "sshCidr": cidr})
        engine, stack = context.cloud.engine(moved), stack_of(context.home, moved)
        grave = sorted({step.name for step in engine.preview(stack) if step.operation not in HARMLESS})
        if grave:
            # The program is newer than the cluster: carrying it out now would take nodes from under their users.
            context.emit(
                Note(f"port 22 stays open to {record.config['sshCidr']} only: {', '.join(grave)} would change")
            )
            return record
        context.emit(Note(f"opening port 22 to {cidr} instead of {record.config['sshCidr']}"))
        engine.up(stack, context.emit)
        return context.records.save_cluster(moved, context.clock.now())


def authorize_ssh_if_possible(context: CloudContext, record: ClusterRecord) -> ClusterRecord:
    """The same for who goes on without it: what stands in the way is told and is no error."""
    try:
        check_identity(record, context.cloud)
        return authorize_ssh(context, record)
    except CloudGpuError as err:
        context.emit(Note(f"who may reach cluster {record.name} is left as it is: {err.message}"))
        return record


def caller(context: CloudContext, record: ClusterRecord) -> str:
    """Where the caller is; where nobody can tell, it is taken to be where it was.

    So it is where nobody knocks at port 22 from outside: by Session Manager, or behind a jump host.
    """
    if record.config.get("reach") == "ssm" or any(
        node.bastion for node in stored_inventory(context.home, record).nodes
    ):
        return record.config.get("sshCidr", "")
    try:
        return context.cloud.caller_cidr()
    except ConnectError as err:
        context.emit(Note(f"{err.message}; taken to be unchanged"))
        return record.config.get("sshCidr", "")


def _repair_drift(context: CloudContext, record: ClusterRecord) -> None:
    """Undo what somebody did to the rules; who is at this cluster meanwhile is not disturbed."""
    engine, stack = context.cloud.engine(record), stack_of(context.home, record)
    drifted = engine.drift(stack)
    if not drifted:
        return
    try:
        with _lease(context, record).hold(tidy=True):
            for line in engine.repair_drift(stack):
                context.emit(Note(f"put right: {line}"))
    except BusyError as err:
        for line in drifted:
            context.emit(Note(f"not put right, {err.message}: {line}"))


def _lease(context: CloudContext, record: ClusterRecord) -> Lease:
    return Lease(context.home.cluster(record.name).root / "lease", context.clock, context.owner)
