"""What a killed command left: its CLI, the lock, and operations whose end nobody saw."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cloudgpu import files
from cloudgpu.aws.resources.base import HandlerContext, Physical
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.decoding import decoded
from cloudgpu.engine.base import Event, OnEvent
from cloudgpu.engine.direct.deployment import Registry
from cloudgpu.engine.direct.unanswered_delays import Delays
from cloudgpu.engine.plugin.tokens import Tokens
from cloudgpu.engine.pulumi_cli.command import abandoned, end_abandoned
from cloudgpu.engine.pulumi_cli.stacks import StackPort
from cloudgpu.engine.pulumi_cli.state import FLEET, Pending, pending, settled
from cloudgpu.errors import CloudGpuError
from cloudgpu.paths import unwritable

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 5.0
_UNREAD_DOUBT: Final = timedelta(minutes=10)
"""Longer than any cloud needs to show what was made."""


@dataclass(frozen=True)
class Notes:
    """Two small files beside a stack's settings.

    Attributes:
        running: The process id of the CLI while it runs.
        unsettled: Until when the cloud may not show all that was made; there only after a command broke off.
    """

    running: Path
    unsettled: Path

    def doubt_until(self) -> datetime | None:
        """Until when an empty search proves nothing; None when there is no doubt.

        Raises:
            StateError: It cannot be read.
        """
        try:
            return decoded(datetime, files.read_text(self.unsettled, files.SETTINGS_BYTES))
        except FileNotFoundError:
            return None
        except ValueError:
            # Torn, as a power cut leaves it: something was in doubt, and nobody knows for how long.
            return datetime.fromtimestamp(self.unsettled.stat().st_mtime, UTC) + _UNREAD_DOUBT
        except OSError as err:
            raise unwritable(self.unsettled, err) from err

    def doubt(self, until: datetime) -> None:
        """Note that something may have been made which nobody saw.

        Raises:
            StateError: It cannot be written.
        """
        try:
            files.replace(self.unsettled, until.isoformat().encode())
        except OSError as err:
            raise unwritable(self.unsettled, err) from err

    def clear(self) -> None:
        """Nothing is in doubt any more."""
        with contextlib.suppress(FileNotFoundError):
            self.unsettled.unlink()


def notes_in(folder: Path) -> Notes:
    """The notes of the stack whose settings lie there."""
    return Notes(folder / "running", folder / "unsettled")


@dataclass(frozen=True)
class Searcher:
    """Finds what a cut-off creation made, by the token that the rehearsal plugin made it under.

    Attributes:
        region: The stack's own, for what names none.
    """

    handlers: Registry
    clients_for: Callable[[str], Clients]
    tokens: Tokens
    tags: Mapping[str, str]
    region: str

    def find(self, operation: Pending, clock: Clock) -> Physical | None:
        """What it made, or None as far as the cloud shows by now.

        Raises:
            CloudGpuError: The cloud cannot be asked.
        """
        handler = self.handlers.handler(operation.type)
        inputs = {name: value for name, value in operation.inputs.items() if name != "region"}
        region = str(operation.inputs.get("region") or self.region)
        token = self.tokens.token(operation.urn, operation.type, region, inputs)
        return handler.find(HandlerContext(self.clients_for(region), clock, token, self.tags), inputs)


class Recovery:
    """Brings a stack back to where its state and the cloud agree. The caller holds the cluster's lease."""

    def __init__(self, notes: Notes, clock: Clock, delays: Delays, on_event: OnEvent) -> None:
        self._notes = notes
        self._clock = clock
        self._delays = delays
        self._on_event = on_event

    def end_abandoned(self) -> bool:
        """End the CLI of a killed command; True when a command was killed, or broke off, at all.

        Raises:
            BusyError: It cannot be ended.
        """
        if abandoned(self._notes.running):
            end_abandoned(self._notes.running, self._clock, self._awaited)
            self.doubt()
            self._notes.running.unlink(missing_ok=True)
            return True
        return self._notes.doubt_until() is not None

    def settle(self, stack: StackPort, searcher: Searcher | None) -> None:
        """Take what cut-off creations made into the state, and every pending operation out of it.

        Args:
            stack: The stack.
            searcher: Finds them by their tokens; None where Pulumi's own plugin made them, which sends none: then
                the search by tag ends what they made.

        Raises:
            CloudGpuError: The cloud cannot be asked, or the state not be written.
        """
        document = stack.document()
        cut_off = pending(document)
        if not cut_off:
            return
        creations = [one for one in cut_off if one.kind == "creating"]
        until = self.doubt(launching=any(one.type == FLEET for one in creations))
        made = {} if searcher is None else self._found(creations, searcher, until)
        stack.replace(settled(document, made))

    def doubt(self, *, launching: bool = False) -> datetime:
        """Something ended without an answer and may still have its effect; returns until when an empty search is none.

        Raises:
            StateError: The note cannot be written.
        """
        landing_s = self._delays.launch_s if launching else self._delays.landing_s
        until = self._clock.now() + timedelta(seconds=landing_s + self._delays.showing_s)
        self._notes.doubt(until)
        return until

    def in_doubt(self) -> bool:
        """Whether something may have been made that the state does not know."""
        return self._notes.doubt_until() is not None

    def done(self) -> None:
        """The stack is what its program says: nothing is in doubt any more."""
        self._notes.clear()

    def wait(self) -> None:
        """Return when the cloud shows all that was ever made: a search that begins now sees it."""
        until = self._notes.doubt_until()
        if until is not None:
            left_s = (until - self._clock.now()).total_seconds()
            if left_s > 0:
                self._clock.sleep(left_s)

    def _found(self, creations: list[Pending], searcher: Searcher, until: datetime) -> dict[str, Physical]:
        """Look until all are found, or until the cloud has had its time to show them."""
        made: dict[str, Physical] = {}
        pause_s = _FIRST_PAUSE_S
        while True:
            last = self._clock.now() >= until
            for one in creations:
                found = None if one.urn in made else self._looked_for(one, searcher)
                if found is not None:
                    made[one.urn] = found
            if last or len(made) == len(creations):
                return made
            self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _looked_for(self, one: Pending, searcher: Searcher) -> Physical | None:
        try:
            found = searcher.find(one, self._clock)
        except CloudGpuError as err:
            self._on_event(Event("failed", "adopt", one.urn, one.type, one.name, err.message))
            raise
        if found is not None:
            self._on_event(Event("done", "adopt", one.urn, one.type, one.name, found.id))
        return found

    def _awaited(self, pid: int) -> None:
        message = f"waiting for the Pulumi CLI of a killed command (process {pid}) to end"
        self._on_event(Event("waiting", "read", "", "pulumi:log", "info", message))
