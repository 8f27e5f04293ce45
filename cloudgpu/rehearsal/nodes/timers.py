"""A node's timers: the expiry and other scheduled commands, a delayed shutdown and the spot interruption."""

import asyncio
from collections.abc import Callable, Sequence

from cloudgpu.rehearsal.nodes.record import StoredRecord, Timer
from cloudgpu.rehearsal.nodes.servers.power_commands import Action, immediate_action
from cloudgpu.rehearsal.nodes.servers.spot_notices import SPOT_RECLAIM_REASON

_LONGEST_SLEEP_S = 3600.0
"""Maximum wait between checks. The event loop's clock stops while the machine is suspended, so long waits fire late."""


class NodeTimers:
    """The timers of one running node. The node's record contains the due times, so timers outlive the node host."""

    def __init__(
        self,
        stored: StoredRecord,
        *,
        now_s: Callable[[], float],
        cloud_now_s: Callable[[], float],
        run: Callable[[Sequence[str]], None],
        end: Callable[[Action, str], None],
    ) -> None:
        """Create the timers without arming them.

        Args:
            stored: Record of the node.
            now_s: Function that returns the node's time, which a fault may skew.
            cloud_now_s: Function that returns the cloud's time, which determines when spot instances are interrupted.
            run: Function that runs a command in the node.
            end: Function that powers off or reboots the node; called with the action and the reason.
        """
        self._stored = stored
        self._now_s = now_s
        self._cloud_now_s = cloud_now_s
        self._run = run
        self._end = end
        self._waiting: list[asyncio.TimerHandle] = []

    def arm(self) -> None:
        """Reschedule all timers after a timer or a clock has changed. Timers that are due fire immediately."""
        self.disarm()
        record, now_s = self._stored.current, self._now_s()
        waits_s = [timer.due_epoch_s - now_s for timer in record.timers]
        if record.spot_end_epoch_s:
            waits_s.append(record.spot_end_epoch_s - self._cloud_now_s())
        loop = asyncio.get_running_loop()
        self._waiting = [loop.call_later(min(max(0.0, wait_s), _LONGEST_SLEEP_S), self._fire_due) for wait_s in waits_s]

    def disarm(self) -> None:
        """Cancel all timers. Their due times stay in the node's record."""
        for handle in self._waiting:
            handle.cancel()
        self._waiting = []

    def _fire_due(self) -> None:
        record = self._stored.current
        if 0 < record.spot_end_epoch_s <= self._cloud_now_s():
            self._end("off", SPOT_RECLAIM_REASON)
            return
        now_s = self._now_s()
        due = [timer for timer in record.timers if timer.due_epoch_s <= now_s]
        if due:
            self._stored.change(timers=tuple(timer for timer in record.timers if timer not in due))
        self.arm()
        for timer in due:
            self._fire(timer)

    def _fire(self, timer: Timer) -> None:
        action = immediate_action(timer.command)
        if action is None:
            self._run(timer.command)
        else:
            self._end(action, f"its timer {timer.unit} fired")
