"""The output of `logs`: lines of ranks as text or as JSON."""

import json

from cloudgpu.cli.terminal.progress import rank_prefix
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.clock import utc_text
from cloudgpu.run.progress import RankOutput

_TIME = "%Y-%m-%dT%H:%M:%SZ"
_NO_TIME = "-".ljust(len("2026-11-27T09:12:03Z"))


class LogPrinter:
    """Prints the output of ranks. Lines of text begin with their rank if there are several ranks."""

    def __init__(self, screen: Screen, *, as_json: bool, timestamps: bool = False) -> None:
        self._screen = screen
        self._as_json = as_json
        self._timestamps = timestamps

    @property
    def shows_times(self) -> bool:
        """Whether the output shows when its lines were written."""
        return self._as_json or self._timestamps

    def print(self, output: RankOutput) -> None:
        """Print several lines of one rank."""
        at = output.written_at
        if self._as_json:
            written = None if at is None else utc_text(at, "milliseconds")
            self._screen.records(
                json.dumps({"rank": output.rank, "line": line, "time": written}) for line in output.lines
            )
            return
        prefix = "" if output.alone else rank_prefix(output.rank, alone=False).lstrip()
        if self._timestamps:
            prefix = f"{_NO_TIME if at is None else at.strftime(_TIME)} {prefix}"
        self._screen.block(output.lines, prefix)
