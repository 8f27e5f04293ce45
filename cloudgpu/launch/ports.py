"""TCP ports of a run, derived from the run ID so that concurrent runs on one machine rarely collide."""

import hashlib

from cloudgpu.recipe.text_rules import RUN_PORTS

_RANGE = len(RUN_PORTS) // 2
"""Number of rendezvous ports. The same number of ports for the agents' connections follows."""


def master_port(run_id: str, attempt: int = 0) -> int:
    """Return the run's rendezvous port on the head node. If the port is in use, call again with the next `attempt`."""
    return RUN_PORTS.start + _hashed_offset("master", run_id, attempt)


def gang_port(run_id: str, attempt: int = 0) -> int:
    """Return the port on which the head node's agent listens for the other agents."""
    return RUN_PORTS.start + _RANGE + _hashed_offset("gang", run_id, attempt)


def port_after(port: int, count: int) -> int:
    """Return `port` plus `count`, wrapping around within the rendezvous range."""
    return RUN_PORTS.start + (port - RUN_PORTS.start + count) % _RANGE


def _hashed_offset(purpose: str, run_id: str, attempt: int) -> int:
    digest = hashlib.sha256(f"{purpose}/{run_id}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % _RANGE
