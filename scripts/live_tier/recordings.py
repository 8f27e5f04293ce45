"""Write and read scrubbed recordings: the AWS calls of each command, and what each command printed."""

import getpass
import json
import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from cloudgpu import files
from cloudgpu.errors import StateError
from cloudgpu.settings import Settings
from live_tier.evidence import Call, CommandResult, calls_in
from live_tier.scrubbing import Scrubber

COMMANDS_FILE = "commands.json"


def personal_names(settings: Settings) -> list[str]:
    """Return the names of the user and of this machine, which recordings must not contain."""
    names = [settings.owner, settings.team, settings.aws_profile, Path.home().name, socket.gethostname()]
    with suppress(KeyError, OSError):  # the user ID may have no name
        names.append(getpass.getuser())
    return [name for name in names if name and name != "localhost"]


def scrubber_for(results: Sequence[CommandResult], names: Sequence[str]) -> Scrubber:
    """Return a scrubber that has seen everything that will be written."""
    scrubber = Scrubber(names)
    for result in results:
        scrubber.learn([*_printed(result).values(), *result.calls])
    return scrubber


def write(folder: Path, results: Sequence[CommandResult], scrubber: Scrubber) -> None:
    """Write the scrubbed recordings of the commands."""
    folder.mkdir(mode=0o700, exist_ok=True)
    index = []
    for number, result in enumerate(results):
        name = f"{number:02}-{result.name.replace(' ', '-')}.jsonl"
        lines = [json.dumps(scrubber.scrub(call)) + "\n" for call in result.calls]
        files.create(folder / name, "".join(lines).encode())
        row = {"name": result.name, "calls": name, "exit_code": result.exit_code, **_printed(result)}
        index.append(scrubber.scrub(row))
    files.create(folder / COMMANDS_FILE, json.dumps(index, indent=1).encode() + b"\n")


@dataclass(frozen=True)
class Recording:
    """A recording that is replayed.

    Attributes:
        results: The recorded commands, in order.
        files: The recorded calls of each command, by the command's name.
    """

    results: Sequence[CommandResult]
    files: Mapping[str, Path]

    @property
    def cluster(self) -> str:
        """Name of the cluster that the recorded run launched; empty if it launched none."""
        words = next((result.arguments for result in self.results if result.name == "up"), ())
        return next((name for option, name in pairwise(words) if option == "--name"), "")

    def result(self, name: str) -> CommandResult:
        """Return what a command of the cluster printed. A name that was used twice stands for the later command."""
        for result in reversed(self.results):
            if result.name == name:
                return result
        hint = "replay the level that was recorded, from a run that was not interrupted"
        raise StateError(f"the recording has no command {name!r}", hint=hint)


def read(folder: Path) -> Recording:
    """Read a recording."""
    rows = files.read_json(folder / COMMANDS_FILE)
    try:
        paths = [folder / Path(row["calls"]).name for row in rows]
        results = tuple(_recorded(row, calls_in(path)) for row, path in zip(rows, paths, strict=True))
    except (TypeError, KeyError) as err:
        message = f"{folder / COMMANDS_FILE} is not the index of a recording"
        raise ValueError(message) from err
    return Recording(results, {result.name: path for result, path in zip(results, paths, strict=True)})


def _recorded(row: Mapping[str, Any], calls: Sequence[Call]) -> CommandResult:
    printed = row["stdout"]
    stdout = printed if isinstance(printed, str) else json.dumps(printed)
    stderr = "\n".join(row["stderr"])
    return CommandResult(row["name"], tuple(row["arguments"]), row["exit_code"], 0.0, stdout, stderr, tuple(calls))


def delete_unscrubbed(home: Path) -> None:
    """Delete the unscrubbed recordings of runs that were killed. Call only while no other run is in progress."""
    for raw in home.glob("*/raw"):
        shutil.rmtree(raw, ignore_errors=True)


def _printed(result: CommandResult) -> dict[str, Any]:
    """Return the command line and what the command printed; a JSON document as its value."""
    return {
        "arguments": list(result.arguments),
        "stdout": result.document or result.stdout,
        "stderr": result.stderr.split("\n"),
    }
