"""`forget`: remove a dataset's files from this node; see `data_record`."""

from __future__ import annotations

from .data_record import verb

__all__ = ["verb"]
