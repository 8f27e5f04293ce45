"""How to mount a file system or a bucket on a node: programs, options, commands. Pure values."""

from cloudgpu.node.mounts.command import DataMount, MountOrder, order

__all__ = ["DataMount", "MountOrder", "order"]
