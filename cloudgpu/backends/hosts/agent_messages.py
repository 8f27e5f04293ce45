"""Dataclasses against which the responses of a host's agent are validated."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class LeaseRow:
    """A lease on some of a host's GPUs."""

    cluster: str
    owner: str
    gpus: tuple[int, ...]
    mine: bool
    told: str


@dataclass(frozen=True)
class ProcessRow:
    """A process that uses one of the host's GPUs."""

    gpu: int
    told: str


@dataclass(frozen=True)
class EngineState:
    """The state of a host's Docker engine. `problem` is the reason why it cannot run containers; empty if it can."""

    version: str = ""
    rootless: bool = False
    podman: bool = False
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True)
class LeasesResponse:
    """Response to `lease` with the action `show`."""

    gpus: tuple[int, ...]
    problem: str
    leases: tuple[LeaseRow, ...]
    processes: tuple[ProcessRow, ...]
    epoch_s: int = 0
    """Time on the host's clock, in seconds since the epoch."""
    system: str = ""
    """ID of the running system, which is the same for two hosts only if they are the same machine. Empty: unknown."""
    engine: EngineState = field(default_factory=EngineState)


@dataclass(frozen=True)
class TakenResponse:
    """Response to `lease` with the action `take`."""

    devices: tuple[int, ...]
    of: int


@dataclass(frozen=True)
class ExtendedResponse:
    """Response to `lease` with the action `extend`."""

    devices: tuple[int, ...]


@dataclass(frozen=True)
class LeaveResponse:
    """Response to `leave`."""

    clusters: int
    gpus: tuple[int, ...]
    left: tuple[str, ...]


@dataclass(frozen=True)
class HostFacts:
    """Response to `describe`."""

    python: str
    hostname: str
    cpus: int
    memory_mib: int
    disk_free_mib: int
    gpus: tuple[Mapping[str, Any], ...]
    gpu_error: str
    addresses: tuple[Mapping[str, str], ...]
    docker: str
    container_toolkit: bool
    venv: bool
    uv: bool
    packages: str
    root: bool
    cuda: Mapping[str, Any] = field(default_factory=dict)
    engine: EngineState = field(default_factory=EngineState)
