"""What a person sees while things happen: plain lines, coloured on a terminal, never a progress bar in a file."""

import json
import sys
import threading
from typing import Any, TextIO

from cloudgpu.app.happenings import Happening, StageChange
from cloudgpu.errors import CloudGpuError, NoCapacityError, PlanError, RecipeError, RemoteCommandError, TeardownError
from cloudgpu.provision.engine import Event
from cloudgpu.run.progress import MetricValue, Note, RankLine

_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_RANK_COLOURS = ("cyan", "green", "yellow")
_SIGNS = {"create": "+", "update": "~", "replace": "±", "delete": "-", "adopt": "&", "read": "?", "same": "="}


class Screen:
    """Writes happenings as lines. With `json_mode`, lines go to standard error and one document to standard output."""

    def __init__(self, *, json_mode: bool = False, colour: bool | None = None) -> None:
        self.json_mode = json_mode
        self._out: TextIO = sys.stderr if json_mode else sys.stdout
        self._colour = self._out.isatty() if colour is None else colour
        # Ranks, engine threads and the main thread all speak: a line is written whole or not at all.
        self._lock = threading.Lock()

    def say(self, what: Happening) -> None:
        """Show one happening."""
        match what:
            case StageChange(name=name, seconds=None):
                self.line(self.paint(f"==> {name}", "bold"))
            case StageChange(name=name, seconds=seconds):
                self.line(self.paint(f"    {name}: {seconds:.1f} s", "dim"))
            case Note(text=text, node=node):
                self.line(f"    {'' if node is None else f'node {node}: '}{text}")
            case RankLine(rank=rank, text=text):
                mark = self.paint(f"[rank {rank}]", _RANK_COLOURS[rank % len(_RANK_COLOURS)])
                self.line(f"    {mark} {printable(text)}")
            case Event():
                self._event(what)
            case MetricValue():
                pass  # its line has just been shown

    def line(self, text: str = "") -> None:
        """One line for people."""
        with self._lock:
            self._out.write(text + "\n")
            self._out.flush()

    def lines(self, texts: list[str]) -> None:
        """Several lines for people."""
        for text in texts:
            self.line(text)

    def document(self, value: Any) -> None:  # noqa: ANN401
        """The one JSON document of a command."""
        sys.stdout.write(json.dumps(value, indent=2) + "\n")
        sys.stdout.flush()

    def paint(self, text: str, colour: str) -> str:
        """Colour on a terminal, plain text elsewhere."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._colour else text

    def error(self, err: CloudGpuError) -> None:
        """Say what happened and what to do next, on standard error."""
        if self.json_mode:
            self.document(error_json(err))
        red = sys.stderr.isatty()
        head = "\x1b[31merror:\x1b[0m" if red else "error:"
        sys.stderr.write(f"{head} {err.message}\n")
        for detail in _details(err):
            sys.stderr.write(f"  {detail}\n")
        if err.hint:
            sys.stderr.write(f"hint: {err.hint}\n")
        sys.stderr.flush()

    def _event(self, event: Event) -> None:
        if event.kind == "start" or event.operation in ("same", "read"):
            return
        kind = event.type.split("/")[-1].split(":")[-1]
        sign = _SIGNS.get(event.operation, "*")
        match event.kind:
            case "done":
                self.line(f"    {self.paint(sign, 'green')} {kind} {event.name} {event.detail} ({event.seconds:.1f} s)")
            case "failed":
                self.line(f"    {self.paint('x', 'red')} {kind} {event.name}: {event.detail}")
            case _:
                self.line(f"    {self.paint('...', 'dim')} {kind} {event.name}: {event.detail}")


def printable(text: str) -> str:
    """A rank's line without control characters: a node must not steer the caller's terminal."""
    return "".join(char if char.isprintable() or char == "\t" else "\ufffd" for char in text)


def error_json(err: CloudGpuError) -> dict[str, Any]:
    """The documented `--json` form of an error."""
    return {
        "error": {
            "type": type(err).__name__,
            "message": err.message,
            "hint": err.hint,
            "exit_code": err.exit_code,
            "details": _details(err),
        }
    }


_LISTS: dict[type[CloudGpuError], str] = {
    RecipeError: "problems",
    PlanError: "findings",
    NoCapacityError: "tried",
    TeardownError: "left",
    RemoteCommandError: "tail",
}


def _details(err: CloudGpuError) -> list[str]:
    for kind, name in _LISTS.items():
        if isinstance(err, kind):
            return list(getattr(err, name))
    return []
