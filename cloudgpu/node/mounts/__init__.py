"""Build the commands that a node's agent runs to mount file systems and buckets."""

from cloudgpu.node.mounts.command import DataMount, MountOrder, build_mount_order

__all__ = ["DataMount", "MountOrder", "build_mount_order"]
