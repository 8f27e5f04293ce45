"""Runtime state of a fault script's conditions: the active conditions and their call counters.

The state is kept in memory, like the fault rules.
"""

import threading
from datetime import datetime, timedelta

from cloudgpu.clock import Clock
from cloudgpu.rehearsal.faults.api_faults import Conditions


class ActiveConditions:
    """The active conditions and their counters, which the API rules query and update. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self.put(Conditions())

    def put(self, now: Conditions) -> None:
        """Replace the conditions and reset all counters."""
        with self._lock:
            self.now = now
            self.since = self._clock.now()
            self.times_applied = 0
            self._left: dict[tuple[str, str], int] = {}
            self._left["start", ""] = now.failed_starts
            self._tokens: dict[str, tuple[float, float]] = {}

    def skewed_now(self) -> datetime:
        """Return the current time of the simulated AWS, in UTC."""
        return self._clock.now() + timedelta(seconds=self.now.clock_skew_s)

    def made(self, resource_id: str) -> None:
        """Register a new resource by ID or name.

        `unseen` then returns True for the next `unseen_calls` calls that refer to it, and `unseen_in_launch` for the
        next `unseen_launches` fleet launches.
        """
        with self._lock:
            if self.now.unseen_calls:
                self._left["id", resource_id] = self.now.unseen_calls
            if self.now.unseen_launches:
                self._left["launch", resource_id] = self.now.unseen_launches

    def unseen(self, resource_id: str) -> bool:
        """Count a call that refers to this resource. Return True if the call must not find the resource yet."""
        return self._spent("id", resource_id)

    def unseen_in_launch(self, name: str) -> bool:
        """Count a fleet launch that refers to this resource. Return True if the launch must not find it yet."""
        return self._spent("launch", name)

    def is_profile_unknown(self, profile_id: str, made: datetime) -> bool:
        """Count a launch with this instance profile. Return True if EC2 does not find the profile yet.

        Profiles that were created before the conditions became active are always found.
        """
        if not self.now.profile_calls or made < self.since:
            return False
        with self._lock:
            self._left.setdefault(("profile", profile_id), self.now.profile_calls)
        return self._spent("profile", profile_id)

    def is_console_empty(self, instance_id: str) -> bool:
        """Count a read of this console. Return True if the console is still empty."""
        if self.now.console_empty:
            self.count_affected_call()
            return True
        if not self.now.console_calls:
            return False
        with self._lock:
            self._left.setdefault(("console", instance_id), self.now.console_calls)
        return self._spent("console", instance_id)

    def failure_at_start(self) -> str:
        """Count an instance that starts. Return the code of the reason why it must not start, or an empty string."""
        return self.now.start_reason if self._spent("start", "") else ""

    def should_throttle(self, region: str) -> bool:
        """Take one token from the region's token bucket. Return True if the bucket is empty."""
        rate, burst = self.now.calls_per_s, float(self.now.burst)
        if not rate:
            return False
        with self._lock:
            now_s = self._clock.monotonic()
            tokens, last = self._tokens.get(region, (burst, now_s))
            tokens = min(burst, tokens + (now_s - last) * rate)
            throttled = tokens < 1
            self._tokens[region] = (tokens if throttled else tokens - 1, now_s)
            self.times_applied += throttled
        return throttled

    def count_affected_call(self) -> None:
        """Count one call that a condition affected."""
        with self._lock:
            self.times_applied += 1

    def _spent(self, kind: str, name: str) -> bool:
        """Decrement the count of calls that a condition still affects for a resource. Return False if none was left."""
        with self._lock:
            left = self._left.get((kind, name), 0)
            if left:
                self._left[kind, name] = left - 1
                self.times_applied += 1
        return left > 0


class SkewedClock:
    """A clock whose `now` returns the time of the simulated AWS. All other methods use the machine's clock."""

    def __init__(self, clock: Clock, behaviour: ActiveConditions) -> None:
        self._clock = clock
        self._behaviour = behaviour

    def now(self) -> datetime:
        """Return the current time of the simulated AWS, in UTC."""
        return self._behaviour.skewed_now()

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point."""
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for this many seconds."""
        self._clock.sleep(seconds)
