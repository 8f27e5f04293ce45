"""Times as the ledger stores them: UTC, microseconds, sortable as text."""

from datetime import UTC, datetime

from cloudgpu.errors import LedgerError


def to_text(moment: datetime) -> str:
    """`2026-11-21T05:00:00.000000Z`.

    Raises:
        LedgerError: The time has no zone, so nobody knows when it was.
    """
    if moment.tzinfo is None:
        raise LedgerError(
            f"a time without a zone cannot go into the ledger: {moment.isoformat()}", hint="please report this"
        )
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_text(text: str) -> datetime:
    """The moment that `to_text` wrote."""
    return datetime.fromisoformat(text)
