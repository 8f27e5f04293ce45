"""Resources that a command opens and that `main` closes when the command returns or fails."""

from contextlib import ExitStack

open_resources = ExitStack()
"""The open resources. They are shared by the whole process, which runs one command at a time."""
