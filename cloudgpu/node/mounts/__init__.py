"""Programs, options and commands that mount a file system or a bucket on a node. Nothing is executed here."""

from cloudgpu.node.mounts.command import DataMount, MountOrder, build_mount_order

__all__ = ["DataMount", "MountOrder", "build_mount_order"]
