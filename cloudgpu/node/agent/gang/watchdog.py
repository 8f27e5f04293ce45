"""The watchdog of a run, which cleans up after the run if its agent dies."""

from __future__ import annotations

import signal

from .. import proc
from ..containers.run_container import RankContainer
from ..watchdog import WatchdogProcess
from . import secret_file
from .authorized_keys import revoke
from .spec import StartSpec, log_paths


class Watchdog(WatchdogProcess):
    """A process that kills the ranks, removes their container and revokes the run's SSH key if the agent dies."""

    def __init__(self, mark: str, container: RankContainer | None = None, spec: StartSpec | None = None) -> None:
        self.mark = mark
        super().__init__(lambda messages: _clean_up(messages, mark, container, spec))

    def watch(self, group: int) -> None:
        """Add a process group to kill if the agent dies."""
        self.send(b"%d" % group)

    def hold(self, *, exists: bool) -> None:
        """Tell the watchdog to remove the container if the agent dies (`exists=True`), or not to remove it.

        The watchdog must not remove a container by name once another attempt may have reused the name.
        """
        self.send(b"hold" if exists else b"free")

    def kill_marked_processes(self) -> None:
        """Kill every process that has the run's mark. The watchdog itself does not have the mark."""
        proc.kill_marked(self.mark)


def _clean_up(messages: list[bytes], mark: str, container: RankContainer | None, spec: StartSpec | None) -> None:
    """Kill the ranks, revoke the run's SSH key, and remove its container and its secrets from the logs."""
    for group in (int(word) for word in messages if word.isdigit()):
        proc.signal_group(group, signal.SIGKILL)
    proc.kill_marked(mark)
    if spec is not None:
        revoke(spec)
    last_was_hold = [word for word in messages if not word.isdigit()][-1:] == [b"hold"]
    if container is not None and last_was_hold:
        container.remove_with_retries()
    if spec is not None:
        secret_file.finish(spec.run_dir, log_paths(spec))
