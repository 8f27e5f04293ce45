"""Report what is still running after Ctrl-C, before the command exits with 130."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.cli.terminal.signals import interruptions
from cloudgpu.errors import CloudGpuError
from cloudgpu.text import command

if TYPE_CHECKING:
    from cloudgpu.app.sweep.cluster_resources import ClusterResources
    from cloudgpu.cli.context.wiring import Wiring
    from cloudgpu.state.cluster_and_run_records import RecordStore
    from cloudgpu.state.storage_records import StorageRecords


class Interrupted(BaseException):
    """An interruption by Ctrl-C; `partial_result` contains fields for the command's `--json` output.

    This is not a KeyboardInterrupt, because typer would convert that to an exit code and lose the fields.
    """

    def __init__(self, partial_result: dict[str, Any]) -> None:
        super().__init__("interrupted")
        self.partial_result = partial_result


@contextmanager
def reporting_partial_result(partial_result: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Attach the command's partial result to the error or Ctrl-C that aborts the command."""
    try:
        yield
    except CloudGpuError as err:
        err.partial_result = err.partial_result or partial_result()
        raise
    except KeyboardInterrupt:
        raise Interrupted(partial_result()) from None


@contextmanager
def print_on_interrupt(screen: Screen, *lines: str) -> Iterator[None]:
    """Print these lines after Ctrl-C, then reraise the interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        screen.lines(["", *lines])
        raise


def report_clusters_on_signal(records: "RecordStore", *clusters: str) -> None:
    """After a signal, report which clusters are still running: these and any that the command creates."""
    from cloudgpu.app.sweep.still_running import StillRunning

    interruptions.tell(StillRunning(records, clusters).lines)


def report_storage_on_signal(records: "StorageRecords", name: str) -> None:
    """After a signal, report whether this storage exists."""
    from cloudgpu.app.sweep.still_running import storage_lines

    interruptions.tell(lambda: storage_lines(records, name))


def report_sweep_on_signal(clusters: "Sequence[ClusterResources]") -> None:
    """After a signal, report which of these clusters may not be deleted yet."""
    from cloudgpu.app.sweep.still_running import swept_clusters_lines

    interruptions.tell(lambda: swept_clusters_lines(clusters))


def reattach_lines(run_id: str) -> tuple[str, str]:
    """Return the lines that tell the user how to reattach to or cancel a run that continues."""
    return (
        f"run {run_id} continues without this command",
        f"to reattach: {command('cloudgpu', 'attach', run_id)}    to cancel: {command('cloudgpu', 'cancel', run_id)}",
    )


def ask_about_cluster(wiring: "Wiring", cluster: str, choice: str) -> None:
    """After Ctrl-C in `up`, delete the incomplete cluster if requested, or report its state and how to delete it.

    Raises:
        TeardownError: The cluster could not be deleted completely.
    """
    from cloudgpu.cli.render.cluster import deletion_lines

    record = wiring.records.cluster(cluster)
    if record is None:
        wiring.screen.lines(["", "interrupted before any resource was created; nothing is left"])
    elif record.state != "up" and wiring.prompts.delete_on_interrupt(choice, "may be incomplete")(f"cluster {cluster}"):
        wiring.screen.lines(deletion_lines(wiring.teardown(cluster).down(cluster, record.region)))
    else:
        state = "is running" if record.state == "up" else "may be incomplete"
        wiring.screen.lines(
            [
                "",
                f"cluster {cluster} {state}; its nodes power off at {record.expires_at:%Y-%m-%d %H:%M} UTC",
                f"delete it now: {command('cloudgpu', 'down', cluster)}    finish it: run the same `cloudgpu up` again",
            ]
        )
