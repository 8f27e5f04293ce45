"""Bootstrap of a new node: steps with a check and an action, rendered as one script per kind of node."""

from cloudgpu.node.bootstrap.packing import pack_script
from cloudgpu.node.bootstrap.rendering import NodeKind, bootstrap_script, image_cleanup_script

__all__ = ["NodeKind", "bootstrap_script", "image_cleanup_script", "pack_script"]
