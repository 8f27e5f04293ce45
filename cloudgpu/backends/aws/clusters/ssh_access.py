"""Update a running cluster in place: open port 22 to the caller's address, and repair security group rules."""

from collections.abc import Mapping
from dataclasses import replace

from cloudgpu.backends.aws.account import CloudContext
from cloudgpu.backends.aws.engines import stack_of
from cloudgpu.backends.lifecycle.existing_cluster import IN_PLACE_OPERATIONS, hold_lease
from cloudgpu.errors import BusyError, ConnectError
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.nodes import stored_inventory


def update_in_place(
    context: CloudContext, record: ClusterRecord, changes: Mapping[str, str], *, doing: str, refused: str
) -> ClusterRecord:
    """Apply changed settings, and return the updated record.

    If the update would create, replace or delete resources, change nothing and emit a note that begins with `refused`.
    """
    with hold_lease(context, record.name):
        record = context.records.cluster(record.name) or record
        config = {**record.placement.config, **changes}
        updated = replace(record, placement=replace(record.placement, config=config))
        engine, stack = context.cloud.engine(updated), stack_of(context.home, updated)
        changed = sorted({step.name for step in engine.preview(stack) if step.operation not in IN_PLACE_OPERATIONS})
        if changed:
            # Another version of the program created the cluster. Applying this version would replace resources in use.
            context.emit(Note(f"{refused}, because the update would also change {', '.join(changed)}"))
            return record
        context.emit(Note(doing))
        engine.up(stack, context.emit)
        return context.records.save_cluster(updated, context.clock.now())


def authorize_ssh(context: CloudContext, record: ClusterRecord) -> ClusterRecord:
    """Open port 22 of a running cluster to the caller's address, or repair drift if the address is already allowed.

    If the update would create, replace or delete resources, change nothing and emit a note.
    """
    cidr = detect_caller_cidr(context, record)
    authorized = record.placement.config.get("sshCidr", cidr)
    if cidr == authorized:
        _repair_drift(context, record)
        return record
    doing = f"opening port 22 to {cidr} instead of {authorized}"
    refused = f"port 22 stays open only to {authorized}"
    return update_in_place(context, record, {"sshCidr": cidr}, doing=doing, refused=refused)


def detect_caller_cidr(context: CloudContext, record: ClusterRecord) -> str:
    """Return the CIDR of the caller's current address, or the recorded CIDR if the address cannot be determined.

    With Session Manager or a jump host, also return the recorded CIDR, because the caller does not connect directly.
    """
    if record.placement.config.get("reach") == "ssm" or any(
        node.bastion for node in stored_inventory(context.home, record).nodes
    ):
        return record.placement.config.get("sshCidr", "")
    try:
        return context.cloud.caller_cidr()
    except ConnectError as err:
        context.emit(Note(f"{err.message}; assuming that your address is unchanged"))
        return record.placement.config.get("sshCidr", "")


def _repair_drift(context: CloudContext, record: ClusterRecord) -> None:
    """Undo manual changes to the security group rules, unless another process is working on this cluster."""
    engine, stack = context.cloud.engine(record), stack_of(context.home, record)
    drifted = engine.drift(stack)
    if not drifted:
        return
    try:
        with hold_lease(context, record.name):
            for line in engine.repair_drift(stack):
                context.emit(Note(f"repaired: {line}"))
    except BusyError as err:
        for line in drifted:
            context.emit(Note(f"not repaired, because {err.message}: {line}"))
