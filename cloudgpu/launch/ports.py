"""TCP ports of a run, its own for every run, so that two runs on one machine do not meet."""

import hashlib

from cloudgpu.recipe.reserved import RUN_PORTS

_RANGE = len(RUN_PORTS) // 2
"""Ports for rendezvous; as many follow for the gangs."""


def master_port(run_id: str, attempt: int = 0) -> int:
    """The rendezvous port of a run on its head node. Taken? Ask for the next `attempt`."""
    return RUN_PORTS.start + _drawn("master", run_id, attempt)


def gang_port(run_id: str, attempt: int = 0) -> int:
    """The port on which the head's agent listens for the other nodes' agents."""
    return RUN_PORTS.start + _RANGE + _drawn("gang", run_id, attempt)


def following(port: int, count: int) -> int:
    """The port so many behind this one, within those of a run's rendezvous."""
    return RUN_PORTS.start + (port - RUN_PORTS.start + count) % _RANGE


def _drawn(purpose: str, run_id: str, attempt: int) -> int:
    digest = hashlib.sha256(f"{purpose}/{run_id}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % _RANGE
