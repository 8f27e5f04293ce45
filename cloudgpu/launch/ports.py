"""TCP ports of a run, derived from the run id so that concurrent runs on one machine do not collide."""

import hashlib

from cloudgpu.recipe.reserved_names import RUN_PORTS

_RANGE = len(RUN_PORTS) // 2
"""Number of rendezvous ports. The same number of gang ports follows."""


def master_port(run_id: str, attempt: int = 0) -> int:
    """Return the run's rendezvous port on the head node. If it is in use, retry with the next `attempt`."""
    return RUN_PORTS.start + _drawn("master", run_id, attempt)


def gang_port(run_id: str, attempt: int = 0) -> int:
    """Return the port on which the head's agent listens for the other agents."""
    return RUN_PORTS.start + _RANGE + _drawn("gang", run_id, attempt)


def following(port: int, count: int) -> int:
    """Return the port at this distance, wrapping around within the rendezvous range."""
    return RUN_PORTS.start + (port - RUN_PORTS.start + count) % _RANGE


def _drawn(purpose: str, run_id: str, attempt: int) -> int:
    digest = hashlib.sha256(f"{purpose}/{run_id}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % _RANGE
