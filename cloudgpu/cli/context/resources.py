"""Resources that a command opens, and that `main` closes when the command has ended or failed."""

from contextlib import ExitStack

opened = ExitStack()
"""Shared by the whole process, which runs one command at a time."""
