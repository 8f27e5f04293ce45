"""Report what is still running after Ctrl-C, before the command exits 130."""

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
    """Ctrl-C, with what the command had achieved so far as fields of its own `--json` output.

    Not a KeyboardInterrupt: typer would turn that into an exit code and lose the fields.
    """

    def __init__(self, partial_result: dict[str, Any]) -> None:
        super().__init__("interrupted")
        self.partial_result = partial_result


@contextmanager
def reporting_partial_result(partial_result: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Attach what the command has achieved to whatever aborts it."""
    try:
        yield
    except CloudGpuError as err:
        err.partial_result = err.partial_result or partial_result()
        raise
    except KeyboardInterrupt:
        raise Interrupted(partial_result()) from None


@contextmanager
def told_when_interrupted(screen: Screen, *lines: str) -> Iterator[None]:
    """Print these lines after Ctrl-C, then let it end the command."""
    try:
        yield
    except KeyboardInterrupt:
        screen.lines(["", *lines])
        raise


def tell_what_runs(records: "RecordStore", *clusters: str) -> None:
    """After a signal, report which of these clusters and of those the command creates still run."""
    from cloudgpu.app.sweep.still_running import StillRunning

    interruptions.tell(StillRunning(records, clusters).lines)


def tell_what_storage(records: "StorageRecords", name: str) -> None:
    """After a signal, report whether this storage exists."""
    from cloudgpu.app.sweep.still_running import storage_lines

    interruptions.tell(lambda: storage_lines(records, name))


def tell_what_is_swept(clusters: "Sequence[ClusterResources]") -> None:
    """After a signal, report which of these clusters may not be deleted yet."""
    from cloudgpu.app.sweep.still_running import swept_clusters_lines

    interruptions.tell(lambda: swept_clusters_lines(clusters))


def going_on(run_id: str) -> tuple[str, str]:
    """Return what to type to come back to a run that continues."""
    return (
        f"run {run_id} continues without this command",
        f"to reattach: {command('cloudgpu', 'attach', run_id)}    to cancel: {command('cloudgpu', 'cancel', run_id)}",
    )


def ask_about_cluster(wiring: "Wiring", cluster: str, choice: str) -> None:
    """After Ctrl-C in `up`, delete the unfinished cluster if requested, or report what is left and how to delete it.

    Raises:
        TeardownError: The cluster could not be deleted completely.
    """
    from cloudgpu.cli.render.cluster import ended_lines

    record = wiring.records.cluster(cluster)
    if record is None:
        wiring.screen.lines(["", "interrupted before any resource was created; nothing is left"])
    elif record.state != "up" and wiring.questions.end_on_interrupt(choice, "may be half made")(f"cluster {cluster}"):
        wiring.screen.lines(ended_lines(wiring.teardown(cluster).down(cluster, record.region)))
    else:
        made = "is up" if record.state == "up" else "may be half made"
        wiring.screen.lines(
            [
                "",
                f"cluster {cluster} {made}; its nodes power off at {record.expires_at:%Y-%m-%d %H:%M} UTC",
                f"delete it now: {command('cloudgpu', 'down', cluster)}    finish it: run the same `cloudgpu up` again",
            ]
        )
