"""Wait for new credentials while nodes are running, instead of giving up the run or leaving the nodes behind."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from cloudgpu.clock import Clock
from cloudgpu.errors import CloudGpuError, renewable_cause
from cloudgpu.run.progress import Emit, Note

T = TypeVar("T")

_FIRST_POLL_S = 2.0
_MAX_POLL_S = 30.0


@dataclass(frozen=True)
class CredentialWait:
    """Repeats an operation on a cluster until the user has renewed expired credentials.

    Attributes:
        until: Time at which waiting becomes pointless: the cluster's expiry, when its nodes terminate themselves.
    """

    clock: Clock
    emit: Emit
    until: datetime

    def retry(self, operation: Callable[[], T]) -> T:
        """Return the operation's result. While it fails because of expired credentials, wait and repeat it."""
        poll_s = _FIRST_POLL_S
        reported = False
        while True:
            try:
                result = operation()
            except CloudGpuError as err:
                expired = renewable_cause(err)
                if expired is None or self.clock.now() >= self.until:
                    raise
                if not reported:
                    self._report(expired)
                reported = True
            else:
                if reported:
                    self.emit(Note("the new credentials are valid; continuing"))
                return result
            self.clock.sleep(poll_s)
            poll_s = min(poll_s * 1.5, _MAX_POLL_S)

    def _report(self, expired: CloudGpuError) -> None:
        self.emit(Note(f"{expired.message}; the nodes are not affected"))
        self.emit(Note(f"waiting for new credentials until {self.until:%Y-%m-%d %H:%M} UTC: {expired.hint}"))
