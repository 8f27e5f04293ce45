"""Times as the ledger stores them: UTC, microseconds, sortable as text."""

from datetime import UTC, datetime

from cloudgpu.decoding import decoded
from cloudgpu.errors import LedgerError


def to_text(moment: datetime) -> str:
    """Format a time as `2026-11-21T05:00:00.000000Z`.

    Raises:
        LedgerError: The time has no time zone.
    """
    if moment.tzinfo is None:
        raise LedgerError(
            f"a time without a time zone cannot be stored in the ledger: {moment.isoformat()}",
            hint="please report this",
        )
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_text(text: str) -> datetime:
    """Parse a time written by `to_text`.

    Raises:
        LedgerError: The text has another format.
    """
    try:
        at = datetime.fromisoformat(text)
        # As `to_text` writes it, which thousands of rows are.
        return at if at.tzinfo is UTC else decoded(datetime, text)
    except ValueError as err:
        message = f"the ledger has an invalid time: {err}"
        raise LedgerError(message, hint="restore the ledger from a backup, or correct that row") from err
