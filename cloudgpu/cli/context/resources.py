"""What a command opens and `main` closes when the command has ended, however it ended."""

from contextlib import ExitStack

opened = ExitStack()
"""One for the process, which carries out one command at a time."""
