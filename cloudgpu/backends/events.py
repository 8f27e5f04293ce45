"""Events that a use case emits while it runs: stages, engine steps and run progress, without formatting."""

from collections.abc import Callable
from dataclasses import dataclass

from cloudgpu.engine.base import Event
from cloudgpu.run.progress import Progress


@dataclass(frozen=True)
class StageChange:
    """The start of a stage (`seconds` is None) or its completion after `seconds`."""

    name: str
    seconds: float | None = None


ProgressEvent = Progress | Event | StageChange
Emit = Callable[[ProgressEvent], None]
