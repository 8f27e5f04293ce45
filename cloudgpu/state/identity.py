"""The identity of a backend in records: its target, endpoint and account."""

from __future__ import annotations

from typing import Protocol


class BackendIdentity(Protocol):
    """The target, endpoint and account of a backend, which keep records of different backends apart."""

    @property
    def target(self) -> str:
        """Return the target that records name: `aws`, `rehearsal`, `ssh`, or the name of a third-party backend."""

    @property
    def endpoint(self) -> str:
        """Return an ID that distinguishes endpoints with the same account ID; empty for AWS."""

    def account(self) -> str:
        """Return the account ID of the credentials in use."""
