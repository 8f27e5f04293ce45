"""Make `python3 -m cloudgpu.node.agent VERB` behave like the copied file."""

from .main import entry

entry()
