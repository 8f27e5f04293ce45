"""How a file system or a bucket is mounted on a node: programs, options, command lines. Pure values, tested as text."""

from cloudgpu.node.mounts.command import DataMount, MountOrder, order

__all__ = ["DataMount", "MountOrder", "order"]
