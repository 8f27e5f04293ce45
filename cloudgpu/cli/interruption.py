"""What Ctrl-C leaves behind is said, before the command ends with 130."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cloudgpu.cli.screen import Screen

if TYPE_CHECKING:
    from cloudgpu.cli.wiring import Wiring


@contextmanager
def told_when_interrupted(screen: Screen, *lines: str) -> Iterator[None]:
    """Say these lines after Ctrl-C, then let it end the command."""
    try:
        yield
    except KeyboardInterrupt:
        screen.lines(["", *lines])
        raise


def going_on(run_id: str) -> tuple[str, str]:
    """A run whose watcher goes away."""
    return (
        f"run {run_id} goes on without this command",
        f"come back: cloudgpu attach {run_id}    end it: cloudgpu cancel {run_id}",
    )


def ask_about_cluster(wiring: "Wiring", cluster: str, choice: str) -> None:
    """After Ctrl-C in `up`: end what there is as asked, or say what is left and how to end it.

    Raises:
        TeardownError: It was to be ended, and something is left.
    """
    from cloudgpu.cli.show_cluster import ended_lines

    record = wiring.records.cluster(cluster)
    if record is None:
        wiring.screen.lines(["", "interrupted before anything was bought; nothing is left"])
    elif record.state != "up" and wiring.end_on_interrupt(choice, "may be half made")(f"cluster {cluster}"):
        wiring.screen.lines(ended_lines(wiring.teardown(cluster).down(cluster, record.region)))
    else:
        made = "is up" if record.state == "up" else "may be half made"
        wiring.screen.lines(
            [
                "",
                f"cluster {cluster} {made} and ends itself at {record.expires_at:%Y-%m-%d %H:%M} UTC",
                f"end it now: cloudgpu down {cluster}    go on making it: the same `cloudgpu up` again",
            ]
        )
