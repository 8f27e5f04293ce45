"""`unmount`: take down what a run has mounted; see `mount`."""

from __future__ import annotations

from .mount import unmount as verb

__all__ = ["verb"]
