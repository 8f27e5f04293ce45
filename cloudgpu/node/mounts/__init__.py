"""Build the commands with which a node's agent mounts file systems and buckets."""

from cloudgpu.node.mounts.command import DataMount, MountOrder, build_mount_order

__all__ = ["DataMount", "MountOrder", "build_mount_order"]
