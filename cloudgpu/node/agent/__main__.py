"""Lets `python3 -m cloudgpu.node.agent VERB` behave as the copied file does."""

from .main import entry

entry()
