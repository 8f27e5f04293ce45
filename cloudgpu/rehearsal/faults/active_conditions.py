"""Runtime state of the conditions of a fault script: what is active and the calls counted so far.

Kept in memory, like fault rules.
"""

import threading
from datetime import datetime, timedelta

from cloudgpu.clock import Clock
from cloudgpu.rehearsal.faults.conditions import Conditions


class ActiveConditions:
    """The active conditions. The API rules query it on every call; thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self.put(Conditions())

    def put(self, now: Conditions) -> None:
        """Replace the conditions and reset all counters."""
        with self._lock:
            self.now = now
            self.since = self._clock.now()
            self.struck = 0
            self._left: dict[tuple[str, str], int] = {}
            self._tokens: dict[str, tuple[float, float]] = {}

    def skewed(self) -> datetime:
        """Return the time of day on the simulated AWS, UTC."""
        return self._clock.now() + timedelta(seconds=self.now.clock_skew_s)

    def made(self, resource_id: str) -> None:
        """Start counting the calls that do not find a new resource yet."""
        if self.now.unseen_calls:
            with self._lock:
                self._left["id", resource_id] = self.now.unseen_calls

    def unseen(self, resource_id: str) -> bool:
        """Count a call that names this id. Return True if the call does not find it yet."""
        return self._spent("id", resource_id)

    def profile_unknown(self, profile_id: str, made: datetime) -> bool:
        """Count a launch with this instance profile. Return True if EC2 does not know the profile yet."""
        if not self.now.profile_calls or made < self.since:
            return False
        with self._lock:
            self._left.setdefault(("profile", profile_id), self.now.profile_calls)
        return self._spent("profile", profile_id)

    def console_silent(self, instance_id: str) -> bool:
        """Count a read of this console. Return True if the console is still empty."""
        if self.now.console_empty:
            self.strike()
            return True
        if not self.now.console_calls:
            return False
        with self._lock:
            self._left.setdefault(("console", instance_id), self.now.console_calls)
        return self._spent("console", instance_id)

    def throttles(self, region: str) -> bool:
        """Take one call from the region's token bucket. Return True if the bucket is empty."""
        rate, burst = self.now.calls_per_s, float(self.now.burst)
        if not rate:
            return False
        with self._lock:
            moment = self._clock.monotonic()
            tokens, last = self._tokens.get(region, (burst, moment))
            tokens = min(burst, tokens + (moment - last) * rate)
            refused = tokens < 1
            self._tokens[region] = (tokens if refused else tokens - 1, moment)
            self.struck += refused
        return refused

    def strike(self) -> None:
        """Count one effect of a condition."""
        with self._lock:
            self.struck += 1

    def _spent(self, kind: str, name: str) -> bool:
        """Count down one call. Return False when no calls are left."""
        with self._lock:
            left = self._left.get((kind, name), 0)
            if left:
                self._left[kind, name] = left - 1
                self.struck += 1
        return left > 0


class SkewedClock:
    """The machine's clock, except that the time of day is that of the simulated AWS."""

    def __init__(self, clock: Clock, behaviour: ActiveConditions) -> None:
        self._clock = clock
        self._behaviour = behaviour

    def now(self) -> datetime:
        """Return the time of day on the simulated AWS, UTC."""
        return self._behaviour.skewed()

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point."""
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self._clock.sleep(seconds)
