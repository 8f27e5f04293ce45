"""Update a running cluster with changed program settings, if that neither creates nor replaces resources."""

from collections.abc import Mapping
from dataclasses import replace

from cloudgpu.backends.aws.clusters.delete import stack_of
from cloudgpu.backends.aws.context import CloudContext
from cloudgpu.backends.lifecycle.cluster_lease import hold_lease
from cloudgpu.backends.lifecycle.reuse import IN_PLACE_OPERATIONS
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord


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
