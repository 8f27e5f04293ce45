"""The settings, the state home and the environment that a command passes to a backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudgpu.backends.api_log import ApiCallLog
    from cloudgpu.backends.base import Backend
    from cloudgpu.clock import Clock
    from cloudgpu.paths import Home
    from cloudgpu.settings import Settings
    from cloudgpu.state.record_store import RecordStore


@dataclass(frozen=True)
class BackendEnvironment:
    """The settings, the state home and the environment of the command that opens a backend.

    Attributes:
        home: The state home, for reading. It may be missing or read-only.
        writable_home: Function that returns the state home and, if the command writes to it, first creates the
            directory and verifies that it is writable.
        environ: The caller's environment, for the programs that a backend starts.
        known_hosts: The files in which the caller's OpenSSH stores host keys.
        calls: The log of API calls, which is written only if `--debug` is set.
        buckets: Function that opens the backend for S3 access, for backends without object storage.
    """

    settings: Settings
    home: Home
    writable_home: Callable[[], Home]
    records: RecordStore
    clock: Clock
    environ: Mapping[str, str]
    known_hosts: tuple[Path, ...]
    calls: ApiCallLog
    buckets: Callable[[], Backend]


def user_known_hosts() -> tuple[Path, ...]:
    """Return the files in which the caller's OpenSSH stores host keys."""
    own, shared = Path.home() / ".ssh" / "known_hosts", Path("/etc/ssh/ssh_known_hosts")
    return (own, own.with_name("known_hosts2"), shared, shared.with_name("ssh_known_hosts2"))


def caller_environ() -> dict[str, str]:
    """Return a copy of the caller's environment."""
    return dict(os.environ)
