"""Stages with their seconds: what the last panel and `--json` tell."""

from collections.abc import Iterator
from contextlib import contextmanager

from cloudgpu.backends.events import Emit, StageChange
from cloudgpu.clock import Clock


class Stages:
    """Times named stages one after the other."""

    def __init__(self, clock: Clock, emit: Emit, done: tuple[tuple[str, float], ...] = ()) -> None:
        self._clock = clock
        self._emit = emit
        self.done: list[tuple[str, float]] = list(done)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one; it counts also when it ends with an error."""
        self._emit(StageChange(name))
        begun = self._clock.monotonic()
        try:
            yield
        finally:
            seconds = round(self._clock.monotonic() - begun, 3)
            self.done.append((name, seconds))
            self._emit(StageChange(name, seconds))

    def as_json(self) -> list[dict[str, str | float]]:
        """The documented form: name and seconds, in order."""
        return [{"name": name, "seconds": seconds} for name, seconds in self.done]
