"""`python -m cloudgpu`."""

from cloudgpu.cli.main import entry

entry()
