"""`--retry-until-up`: retry all candidates of a plan until one has capacity. No nodes run between attempts."""

from collections.abc import Callable
from datetime import datetime, timedelta
from secrets import SystemRandom

from cloudgpu.backends.aws.context import CloudContext
from cloudgpu.backends.lifecycle.results import ProvisionedCluster
from cloudgpu.errors import NoCapacityError
from cloudgpu.plan.launch_error_codes import pauses_s
from cloudgpu.recipe.units import DurationS
from cloudgpu.run.progress import Note

_RANDOM = SystemRandom()


class CapacityRetry:
    """Repeats an attempt while it fails because of a temporary lack of capacity."""

    def __init__(self, context: CloudContext, limit_s: int, jitter: Callable[[], float] = _RANDOM.random) -> None:
        self._context = context
        self._limit = timedelta(seconds=limit_s)
        self._jitter = jitter

    def until_up(self, attempt: Callable[[], ProvisionedCluster]) -> ProvisionedCluster:
        """Call `attempt` once, and then again with pauses while capacity is temporarily unavailable.

        `attempt` must not leave resources behind when it fails.
        """
        clock = self._context.clock
        until = clock.now() + self._limit
        pauses, count = pauses_s(self._jitter), 1
        while True:
            try:
                return attempt()
            except NoCapacityError as err:
                remaining_s = (until - clock.now()).total_seconds()
                if remaining_s < 1 or not err.passing:
                    raise _with_count(err, count, self._limit) from None
            self._wait(count, min(next(pauses), remaining_s), until)
            count += 1

    def _wait(self, count: int, wait_s: float, until: datetime) -> None:
        clock = self._context.clock
        next_at = clock.now() + timedelta(seconds=wait_s)
        self._context.emit(
            Note(
                f"no capacity in round {count}; nothing is running or billed. Round {count + 1} starts in "
                f"{wait_s:.0f} s, at {next_at:%H:%M:%S} UTC. Retries end at {until:%Y-%m-%d %H:%M} UTC; "
                "press Ctrl-C to stop"
            )
        )
        clock.sleep(wait_s)


def _with_count(err: NoCapacityError, count: int, limit: timedelta) -> NoCapacityError:
    if count == 1:
        return err
    duration = DurationS(int(limit.total_seconds()))
    message = f"{err.message} after {count} rounds in {duration}"
    return NoCapacityError(message, tried=err.tried, passing=err.passing, hint=err.hint)
