"""The conditions that hold, and what was counted under them. Lives in memory, like fault rules."""

import threading
from datetime import datetime, timedelta

from cloudgpu.clock import Clock
from cloudgpu.rehearsal.faults.conditions import Conditions


class Behaviour:
    """Asked by the strict rules at every turn; safe for several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self.put(Conditions())

    def put(self, now: Conditions) -> None:
        """Replace the conditions and start counting afresh."""
        with self._lock:
            self.now = now
            self.since = self._clock.now()
            self.struck = 0
            self._left: dict[tuple[str, str], int] = {}
            self._tokens: dict[str, tuple[float, float]] = {}

    def skewed(self) -> datetime:
        """What the clock of AWS shows."""
        return self._clock.now() + timedelta(seconds=self.now.clock_skew_s)

    def made(self, resource_id: str) -> None:
        """Something new has this id."""
        if self.now.unseen_calls:
            with self._lock:
                self._left["id", resource_id] = self.now.unseen_calls

    def unseen(self, resource_id: str) -> bool:
        """Whether a call that names this id does not find it yet; counts the call."""
        return self._spent("id", resource_id)

    def profile_unknown(self, profile_id: str, made: datetime) -> bool:
        """Whether a launch does not find this instance profile yet; counts the launch."""
        if not self.now.profile_calls or made < self.since:
            return False
        with self._lock:
            self._left.setdefault(("profile", profile_id), self.now.profile_calls)
        return self._spent("profile", profile_id)

    def console_silent(self, instance_id: str) -> bool:
        """Whether this console shows nothing yet; counts the look."""
        if self.now.console_empty:
            self.strike()
            return True
        if not self.now.console_calls:
            return False
        with self._lock:
            self._left.setdefault(("console", instance_id), self.now.console_calls)
        return self._spent("console", instance_id)

    def throttles(self, region: str) -> bool:
        """Take one call from the region's bucket; True when there is none left."""
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
        """A condition made itself felt."""
        with self._lock:
            self.struck += 1

    def _spent(self, kind: str, name: str) -> bool:
        """Count one call down; False once nothing is left."""
        with self._lock:
            left = self._left.get((kind, name), 0)
            if left:
                self._left[kind, name] = left - 1
                self.struck += 1
        return left > 0


class SkewedClock:
    """The machine's clock, but for the time of day, which is that of the simulated AWS."""

    def __init__(self, clock: Clock, behaviour: Behaviour) -> None:
        self._clock = clock
        self._behaviour = behaviour

    def now(self) -> datetime:
        """The time of day on AWS, UTC."""
        return self._behaviour.skewed()

    def monotonic(self) -> float:
        """Seconds from an unknown beginning."""
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self._clock.sleep(seconds)
