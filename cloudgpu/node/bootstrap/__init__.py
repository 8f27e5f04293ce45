"""Bootstrap of a new node: steps with a check and an action, rendered as one script per kind of node."""

from cloudgpu.node.bootstrap.packing import packed
from cloudgpu.node.bootstrap.rendering import NodeKind, cleaning, script

__all__ = ["NodeKind", "cleaning", "packed", "script"]
