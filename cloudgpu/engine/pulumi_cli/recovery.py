"""Recover from a killed command: its CLI process, its lock, and operations whose outcome is unknown."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cloudgpu import files
from cloudgpu.aws.resources.handler import ExistingResource, HandlerContext
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.decoding import decode_as
from cloudgpu.engine.base import Event, OnEvent
from cloudgpu.engine.direct.deployment import Registry
from cloudgpu.engine.direct.unanswered_delays import Delays
from cloudgpu.engine.plugin.tokens import Tokens
from cloudgpu.engine.pulumi_cli.command import stop_abandoned_cli, was_command_killed
from cloudgpu.engine.pulumi_cli.stacks import StackPort
from cloudgpu.engine.pulumi_cli.state import FLEET, Pending, pending_operations, resolve_pending_operations
from cloudgpu.errors import CloudGpuError
from cloudgpu.paths import unwritable_error

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 5.0
_UNREAD_DOUBT: Final = timedelta(minutes=10)
"""Time within which the cloud is assumed to list every new resource if the time in the note is unreadable."""


@dataclass(frozen=True)
class Notes:
    """The notes of a stack: two small files next to the stack's settings.

    Attributes:
        running: File with the process ID of the CLI while it runs.
        unsettled: File that an interrupted command leaves, with the time by which the cloud lists every new resource.
    """

    running: Path
    unsettled: Path

    def incomplete_until(self) -> datetime | None:
        """Return the time until which an empty search proves nothing, or None if the state is complete."""
        try:
            return decode_as(datetime, files.read_text(self.unsettled, files.SETTINGS_BYTES))
        except FileNotFoundError:
            return None
        except ValueError:
            # Truncated by a power failure: the recorded time is lost, so derive a time from the modification time.
            return datetime.fromtimestamp(self.unsettled.stat().st_mtime, UTC) + _UNREAD_DOUBT
        except OSError as err:
            raise unwritable_error(self.unsettled, err) from err

    def mark_incomplete(self, until: datetime) -> None:
        """Record that the state may lack resources, and the time by which the cloud lists all of them."""
        try:
            files.replace(self.unsettled, until.isoformat().encode())
        except OSError as err:
            raise unwritable_error(self.unsettled, err) from err

    def clear(self) -> None:
        """Record that the state is complete again."""
        with contextlib.suppress(FileNotFoundError):
            self.unsettled.unlink()


def notes_in(folder: Path) -> Notes:
    """Return the notes of the stack whose settings are in this directory."""
    return Notes(folder / "running", folder / "unsettled")


@dataclass(frozen=True)
class Searcher:
    """Searches for the resource of an interrupted create operation by the client token that the rehearsal plugin sent.

    Attributes:
        region: The stack's region, for resources that do not set their own.
    """

    handlers: Registry
    clients_for: Callable[[str], Clients]
    tokens: Tokens
    tags: Mapping[str, str]
    region: str

    def find(self, operation: Pending, clock: Clock) -> ExistingResource | None:
        """Return the resource that the operation created, or None if the cloud does not list it (yet)."""
        handler = self.handlers.handler(operation.type)
        inputs = {name: value for name, value in operation.inputs.items() if name != "region"}
        region = str(operation.inputs.get("region") or self.region)
        token = self.tokens.token(operation.urn, operation.type, region, inputs)
        return handler.find(HandlerContext(self.clients_for(region), clock, token, self.tags), inputs)


class Recovery:
    """Recovers one stack after a killed command. The caller must hold the cluster's lease."""

    def __init__(self, notes: Notes, clock: Clock, delays: Delays, on_event: OnEvent) -> None:
        self._notes = notes
        self._clock = clock
        self._delays = delays
        self._on_event = on_event

    def end_abandoned(self) -> bool:
        """Stop the CLI left by a killed command. Return True if an earlier command was killed or interrupted."""
        if was_command_killed(self._notes.running):
            stop_abandoned_cli(self._notes.running, self._clock, self._emit_waiting)
            self.mark_incomplete()
            self._notes.running.unlink(missing_ok=True)
            return True
        return self._notes.incomplete_until() is not None

    def settle(self, stack: StackPort, searcher: Searcher | None) -> None:
        """Add resources that interrupted operations created to the state, and remove every pending operation.

        Args:
            stack: The stack.
            searcher: Finds resources by client token. None for Pulumi's own AWS plugin, which sends no client token.
                The caller then finds the created resources by their tags and deletes them.
        """
        document = stack.document()
        interrupted = pending_operations(document)
        if not interrupted:
            return
        creations = [operation for operation in interrupted if operation.kind == "creating"]
        until = self.mark_incomplete(launching=any(operation.type == FLEET for operation in creations))
        made = {} if searcher is None else self._find_created(creations, searcher, until)
        stack.replace(resolve_pending_operations(document, made))

    def mark_incomplete(self, *, launching: bool = False) -> datetime:
        """Record that an operation may still take effect.

        Return the time until which an empty search proves nothing.
        """
        landing_s = self._delays.launch_s if launching else self._delays.landing_s
        until = self._clock.now() + timedelta(seconds=landing_s + self._delays.showing_s)
        self._notes.mark_incomplete(until)
        return until

    def may_be_incomplete(self) -> bool:
        """Return True if the cloud may contain resources that the state does not list."""
        return self._notes.incomplete_until() is not None

    def done(self) -> None:
        """Record that the stack matches its program."""
        self._notes.clear()

    def wait(self) -> None:
        """Sleep until the recorded time by which the cloud lists every resource created so far."""
        until = self._notes.incomplete_until()
        if until is not None:
            left_s = (until - self._clock.now()).total_seconds()
            if left_s > 0:
                self._clock.sleep(left_s)

    def _find_created(
        self, creations: list[Pending], searcher: Searcher, until: datetime
    ) -> dict[str, ExistingResource]:
        """Search until every resource is found or `until` has passed."""
        made: dict[str, ExistingResource] = {}
        pause_s = _FIRST_PAUSE_S
        while True:
            last = self._clock.now() >= until
            for creation in creations:
                physical = None if creation.urn in made else self._find(creation, searcher)
                if physical is not None:
                    made[creation.urn] = physical
            if last or len(made) == len(creations):
                return made
            self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _find(self, creation: Pending, searcher: Searcher) -> ExistingResource | None:
        try:
            physical = searcher.find(creation, self._clock)
        except CloudGpuError as err:
            self._on_event(Event("failed", "adopt", creation.urn, creation.type, creation.name, err.message))
            raise
        if physical is not None:
            self._on_event(Event("done", "adopt", creation.urn, creation.type, creation.name, physical.id))
        return physical

    def _emit_waiting(self, pid: int) -> None:
        message = f"waiting for the Pulumi CLI of a killed command (process {pid}) to exit"
        self._on_event(Event("waiting", "read", "", "pulumi:log", "info", message))
