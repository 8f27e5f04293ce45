"""Connecting to a whole inventory while it boots."""

from collections.abc import Sequence
from pathlib import Path

from cloudgpu.app.happenings import Say
from cloudgpu.app.ports import Dial
from cloudgpu.clock import Clock
from cloudgpu.launch.inventory import Node
from cloudgpu.remote.base import Host
from cloudgpu.remote.fanout import all_or_raise, wait_for_all
from cloudgpu.run.progress import Note


def dialler(key: Path, clock: Clock, boot_s: float) -> Dial:
    """How nodes are reached with this key; waits up to `boot_s` for a node that boots."""

    def dial(nodes: Sequence[Node], say: Say) -> list[Host]:
        say(Note(f"connecting to {len(nodes)} nodes"))
        return list(all_or_raise(wait_for_all(nodes, key, clock=clock, deadline_s=boot_s)).values())

    return dial
