"""Bootstrap of a new node. The script for each kind of node is a list of steps, each with a check and an action."""

from cloudgpu.node.bootstrap.rendering import NodeKind, bootstrap_script, image_cleanup_script, pack_script

__all__ = ["NodeKind", "bootstrap_script", "image_cleanup_script", "pack_script"]
