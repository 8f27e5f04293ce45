"""Open the backend of a target. Only the backend that a command uses is imported."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cloudgpu.errors import UsageError
from cloudgpu.targets import Target, as_target, cloud_options, traits

if TYPE_CHECKING:
    from cloudgpu.backends.base import Backend
    from cloudgpu.backends.environment import BackendEnvironment
    from cloudgpu.backends.hosts.backend import HostsBackend

BUCKET_TARGET: Target = "aws"
"""Target whose backend accesses S3 for backends without object storage."""


def open_backend(target: Target, environment: BackendEnvironment) -> Backend:
    """Return the backend of a target. The backend connects to its cloud or hosts on first use."""
    backend: Backend = import_module(traits(as_target(target)).backend).open_backend(environment)
    return backend


def open_hosts(environment: BackendEnvironment) -> HostsBackend:
    """Return the backend for self-managed hosts, for the commands that manage hosts."""
    from cloudgpu.backends.hosts.backend import open_backend as open_hosts_backend  # noqa: PLC0415 - imports paramiko

    return open_hosts_backend(environment)


def require_launches(target: Target, feature: str) -> None:
    """Reject a feature that requires launched instances."""
    if not traits(target).launches:
        message = f"{feature}: not available for self-managed hosts, because no cloud instances are launched"
        raise UsageError(message, hint=f"use {cloud_options()}; see docs/reference/hosts.md")
