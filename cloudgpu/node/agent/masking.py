"""Mask secrets in output without changing its length, because logs are addressed by byte offset."""

from __future__ import annotations

from typing import Iterable

SHORTEST = 4
"""Length, in bytes, of the shortest text that is masked. Shorter secrets would mask ordinary words and numbers."""


def is_maskable(secret: str) -> bool:
    """Return True if at least one line of a secret is long enough to be masked."""
    return bool(Mask((secret,)).reach)


class Mask:
    """Masks every line of the given secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        lines = {line.strip() for secret in secrets for line in secret.split("\n")}
        encoded = (line.encode("utf-8", "surrogateescape") for line in lines)
        self._texts = tuple(sorted(text for text in encoded if len(text) >= SHORTEST))
        self.reach = max((len(text) - 1 for text in self._texts), default=0)
        """Number of bytes before and after a piece of output that can belong to a secret in it."""

    def __call__(self, data: bytes) -> bytes:
        """Return the output with an asterisk for every byte of a secret."""
        masked = None
        for text in self._texts:
            start = data.find(text)
            while start >= 0:
                masked = masked or bytearray(data)
                masked[start : start + len(text)] = b"*" * len(text)
                # Secrets may overlap, so the search continues in the original.
                start = data.find(text, start + 1)
        return data if masked is None else bytes(masked)

    def between(self, before: bytes, data: bytes, after: bytes) -> bytes:
        """Return masked output. Its first or last secret may begin in `before` or end in `after`."""
        return self(before + data + after)[len(before) : len(before) + len(data)]
