"""What the commands of one run printed, and the AWS calls that they made."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cloudgpu import files
from cloudgpu.aws.ec2.billing_times import transition_time

Call = Mapping[str, Any]
"""A recorded AWS call: service, region, operation, parameters, status, answer."""


@dataclass(frozen=True)
class CommandResult:
    """A finished `cloudgpu` command. `name` says what it was run for, for example `plan smoke`."""

    name: str
    arguments: tuple[str, ...]
    exit_code: int
    seconds: float
    stdout: str
    stderr: str
    calls: tuple[Call, ...]

    @property
    def document(self) -> Mapping[str, Any]:
        """The JSON document that the command printed; empty if it printed none."""
        try:
            value = json.loads(self.stdout)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def failure(self) -> str:
        """Why the command failed, in one sentence."""
        message = self.document.get("error", {}).get("message", "")
        return f"exit code {self.exit_code}" + (f": {message}" if message else "")


@dataclass(frozen=True)
class InstanceTimes:
    """When EC2 launched and terminated an instance. None if EC2 did not report the time."""

    launched_at: datetime | None
    terminated_at: datetime | None


@dataclass(frozen=True)
class Evidence:
    """The finished commands, in order. A name that was used twice stands for the later command."""

    simulated: bool
    results: Sequence[CommandResult]

    def result(self, name: str) -> CommandResult | None:
        """Return the last command with this name; None if it was not run."""
        return next((result for result in reversed(self.results) if result.name == name), None)

    def document(self, name: str) -> Mapping[str, Any]:
        """Return the document of a command; empty if it was not run."""
        found = self.result(name)
        return found.document if found else {}

    def node_outputs(self, name: str) -> list[str]:
        """Return what an `exec` printed on each node where it succeeded."""
        nodes = self.document(name).get("nodes", [])
        return [str(node["stdout"]) for node in nodes if node.get("exit_code") == 0]

    def calls(self, operation: str) -> list[Call]:
        """Return the recorded calls of an operation, in order."""
        return [call for result in self.results for call in result.calls if call["operation"] == operation]

    def instances(self) -> Iterator[Mapping[str, Any]]:
        """Yield every description of an instance that EC2 gave, in order."""
        for call in self.calls("DescribeInstances"):
            for reservation in call["answer"].get("Reservations", []):
                yield from reservation.get("Instances", [])

    def instance_times(self) -> Mapping[str, InstanceTimes]:
        """Return the times of every instance by ID, from EC2's own descriptions."""
        times: dict[str, InstanceTimes] = {}
        for row in self.instances():
            known = times.get(row["InstanceId"], InstanceTimes(None, None))
            times[row["InstanceId"]] = InstanceTimes(
                datetime.fromisoformat(row["LaunchTime"]) if "LaunchTime" in row else known.launched_at,
                transition_time(row.get("StateTransitionReason", "")) or known.terminated_at,
            )
        return times


def calls_in(path: Path) -> list[Call]:
    """Return the calls in a recording; none if the command made no call. An incomplete last line is ignored."""
    try:
        text = files.read_text(path, files.JOURNAL_BYTES)
    except OSError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1] if line]
