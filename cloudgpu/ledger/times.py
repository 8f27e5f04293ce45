"""Convert between times and the text that the ledger stores: UTC with microseconds, which sorts correctly as text."""

from datetime import UTC, datetime

from cloudgpu.decoding import decode_as
from cloudgpu.errors import LedgerError


def to_text(at: datetime) -> str:
    """Format a time, for example `2026-11-21T05:00:00.000000Z`."""
    if at.tzinfo is None:
        raise LedgerError(
            f"the ledger does not accept a time without a UTC offset: {at.isoformat()}", hint="please report this bug"
        )
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_text(text: str) -> datetime:
    """Parse a time that `to_text` wrote."""
    try:
        at = datetime.fromisoformat(text)
        # Skip full decoding for times in the format of `to_text`, because there may be thousands of rows.
        return at if at.tzinfo is UTC else decode_as(datetime, text)
    except ValueError as err:
        message = f"the ledger contains an invalid time: {err}"
        raise LedgerError(message, hint="restore the ledger from a backup, or correct the row") from err
