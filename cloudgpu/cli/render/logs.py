"""The output of `logs`: lines of ranks as text or as JSON."""

import json

from cloudgpu.cli.terminal.progress import rank_prefix
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.run.progress import RankOutput


class LogPrinter:
    """Prints the output of ranks. Lines of text begin with their rank if there are several ranks."""

    def __init__(self, screen: Screen, *, as_json: bool) -> None:
        self._screen = screen
        self._as_json = as_json

    def print(self, output: RankOutput) -> None:
        """Print several lines of one rank."""
        if self._as_json:
            self._screen.records(json.dumps({"rank": output.rank, "line": line}) for line in output.lines)
        else:
            prefix = "" if output.alone else rank_prefix(output.rank, alone=False).lstrip()
            self._screen.block(output.lines, prefix)
