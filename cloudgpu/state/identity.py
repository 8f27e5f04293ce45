"""The identity of a backend in records: its target, endpoint and account."""

from __future__ import annotations

from typing import Protocol


class BackendIdentity(Protocol):
    """The target, endpoint and account of a backend, which keep records of different backends apart."""

    @property
    def target(self) -> str:
        """Target as stored in records: `aws`, `rehearsal`, `ssh`, or the name of a third-party backend."""

    @property
    def endpoint(self) -> str:
        """ID that distinguishes rehearsal clouds, which share an account ID; empty for AWS and self-managed hosts."""

    def account(self) -> str:
        """Return the AWS account ID of the credentials in use, or a fixed text for self-managed hosts."""
