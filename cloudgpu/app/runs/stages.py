"""Time the stages of a command for the summary panel and `--json`."""

from collections.abc import Iterator
from contextlib import contextmanager

from cloudgpu.clock import Clock
from cloudgpu.run.progress import Emit, StageChange


class Stages:
    """Records the duration of named, consecutive stages."""

    def __init__(self, clock: Clock, emit: Emit, done: tuple[tuple[str, float], ...] = ()) -> None:
        self._clock = clock
        self._emit = emit
        self.done: list[tuple[str, float]] = list(done)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the duration of a stage, even if the stage fails."""
        self._emit(StageChange(name))
        started = self._clock.monotonic()
        try:
            yield
        finally:
            seconds = round(self._clock.monotonic() - started, 3)
            self.done.append((name, seconds))
            self._emit(StageChange(name, seconds))

    def correct(self, name: str, seconds: float) -> None:
        """Set the duration of a stage that this command, and perhaps others before it, saw only in part."""
        self.done = [(stage, took) for stage, took in self.done if stage != name]
        self.done.append((name, seconds))

    def as_json(self) -> list[dict[str, str | float]]:
        """Return the documented JSON form: the name and seconds of each stage, in order."""
        return [{"name": name, "seconds": seconds} for name, seconds in self.done]
