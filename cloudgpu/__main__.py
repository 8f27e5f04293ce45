"""Run the command line as `python -m cloudgpu`."""

from cloudgpu.cli.main import entry

entry()
