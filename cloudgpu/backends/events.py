"""What a use case tells while it works: stages, steps of the engine, progress of the run. Values, no text layout."""

from collections.abc import Callable
from dataclasses import dataclass

from cloudgpu.engine.base import Event
from cloudgpu.run.progress import Progress


@dataclass(frozen=True)
class StageChange:
    """A stage began (`seconds` None) or ended."""

    name: str
    seconds: float | None = None


ProgressEvent = Progress | Event | StageChange
Emit = Callable[[ProgressEvent], None]
