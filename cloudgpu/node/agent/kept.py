"""`kept`: bring up what is left of a run's checkpoints; see `keep`."""

from __future__ import annotations

from .keep import kept as verb

__all__ = ["verb"]
