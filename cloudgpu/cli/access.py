"""Authorize SSH from the caller's current address, for `status --refresh` and the commands that log in to nodes."""

from dataclasses import replace

from cloudgpu.app.access.authorization import authorize_if_possible
from cloudgpu.cli.context import CliContext
from cloudgpu.run.progress import Note, ProgressEvent
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.targets import as_target


def authorize_caller(context: CliContext, record: ClusterRecord) -> None:
    """Authorize SSH from the caller's address. Notes are printed to stderr, because stdout is for data."""

    def emit(event: ProgressEvent) -> None:
        if isinstance(event, Note):
            context.screen.remark(event.text)

    authorize_if_possible(replace(context.deletion_context(as_target(record.identity.target)), emit=emit), record)
