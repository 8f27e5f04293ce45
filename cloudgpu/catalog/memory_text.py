"""Parse amounts of memory: `24GiB`, `32GB` or `32`."""

import re
from decimal import ROUND_DOWN, Decimal
from typing import Final

from cloudgpu.bounds import MAX_SIZE_GIB

_AMOUNT: Final = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(GiB|GB|G|TiB|TB)?\s*", re.IGNORECASE | re.ASCII)
_BYTES: Final = {"gib": 2**30, "tib": 2**40, "gb": 10**9, "tb": 10**12, "g": 10**9}
_STEP: Final = Decimal("0.01")
"""The catalog's precision in GiB. Without rounding, 24 GB would exceed the 22.35 GiB that EC2 reports for an A10G."""


def parse_gib(text: str) -> Decimal:
    """Parse an amount of memory into GiB, rounded down to a hundredth. The default unit is GB (1e9 bytes)."""
    match = _AMOUNT.fullmatch(text)
    amount = Decimal(match[1]) * _BYTES[(match[2] or "GB").lower()] / 2**30 if match else Decimal(0)
    if not amount:
        message = "expected memory such as 32GB or 24GiB; a number without a unit is in GB"
        raise ValueError(message)
    if amount > MAX_SIZE_GIB:
        message = f"expected memory of at most {MAX_SIZE_GIB}GiB"
        raise ValueError(message)
    return amount.quantize(_STEP, ROUND_DOWN)
