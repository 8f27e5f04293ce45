"""Events that a use case emits while it works: stages, engine steps, run progress. Values without layout."""

from collections.abc import Callable
from dataclasses import dataclass

from cloudgpu.engine.base import Event
from cloudgpu.run.progress import Progress


@dataclass(frozen=True)
class StageChange:
    """A stage started (`seconds` is None) or ended."""

    name: str
    seconds: float | None = None


ProgressEvent = Progress | Event | StageChange
Emit = Callable[[ProgressEvent], None]
