"""What a backend receives when it is opened."""

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
    from cloudgpu.state.cluster_and_run_records import RecordStore


@dataclass(frozen=True)
class BackendEnvironment:
    """The settings, the state home and the environment of the command that opens a backend.

    Attributes:
        home: The state home, which may not exist or may not be writable: reading needs neither.
        writable_home: Returns the state home, created and verified to be writable if the command must write to it.
        environ: The caller's environment, for the programs that a backend starts.
        known_hosts: The files in which the caller's OpenSSH keeps host keys.
        calls: The log of API calls; it is written only if `--debug` is set.
        buckets: Opens the backend that accesses S3, for backends without object storage.
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
    """Return the files in which the caller's OpenSSH keeps host keys."""
    return (Path.home() / ".ssh" / "known_hosts", Path("/etc/ssh/ssh_known_hosts"))


def caller_environ() -> dict[str, str]:
    """Return a copy of the caller's environment."""
    return dict(os.environ)
