"""Market tables: capacity per zone, the account's service quotas, and price overrides."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeVar

from cloudgpu.decoding import MALFORMED, decode_as
from cloudgpu.errors import StateError
from cloudgpu.rehearsal.layout import DocumentFormat, write_durably
from cloudgpu.text import command

_FORMAT: Final = DocumentFormat("market tables")
_PARTS = 3
T = TypeVar("T")


class Market:
    """The capacity, quota and price tables, which are saved to disk. Each key has three parts, which may contain `*`.

    Capacity: `zone/type/market` -> maximum number of concurrent instances.
    Quotas: `region/family/market` -> limit in vCPUs; the quota family is `p`, `g`, `standard` or similar. The key
    `region/elastic-ip/on-demand` limits the number of Elastic IP addresses instead.
    Prices: `region/type/market` -> price in USD per hour, as a string; overrides the catalog price.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.capacity: dict[str, int] = {}
        self.quotas: dict[str, int] = {}
        self.prices: dict[str, str] = {}
        if path.exists():
            self._load()

    def put_capacity(self, table: Mapping[str, int]) -> None:
        """Replace the capacity table."""
        self.capacity = _validated_limits(table)
        self._save()

    def put_quotas(self, table: Mapping[str, int]) -> None:
        """Replace the quota table."""
        self.quotas = _validated_limits(table)
        self._save()

    def put_prices(self, table: Mapping[str, str]) -> None:
        """Replace the price table."""
        self.prices = _validated_prices(table)
        self._save()

    def capacity_of(self, zone: str, instance_type: str, market: str) -> int | None:
        """Return the maximum number of instances, or None if unlimited. The lowest matching limit applies."""
        return _lowest_limit(self.capacity, (zone, instance_type, market))

    def quota_of(self, region: str, family: str, market: str) -> int | None:
        """Return the limit for a quota family, or None if no row matches. The lowest matching limit applies."""
        return _lowest_limit(self.quotas, (region, family, market))

    def price_of(self, region: str, instance_type: str, market: str) -> Decimal | None:
        """Return the price in USD per hour, or None to use the catalog price. The last matching row applies."""
        prices = [usd for _, usd in _matching(self.prices, (region, instance_type, market))]
        return Decimal(prices[-1]) if prices else None

    def _load(self) -> None:
        try:
            row = _FORMAT.read(self._path)
            self.capacity, self.quotas = _validated_limits(row["capacity"]), _validated_limits(row["quotas"])
            self.prices = _validated_prices(row.get("prices", {}))
        except (OSError, *MALFORMED) as err:
            message = f"cannot read the market tables of the rehearsal cloud: {self._path} is damaged"
            remove = command("rm", str(self._path))
            hint = f"delete the file to reset capacity, quotas and prices to their defaults: {remove}"
            raise StateError(message, hint=hint) from err

    def _save(self) -> None:
        tables = {"capacity": self.capacity, "quotas": self.quotas, "prices": self.prices}
        write_durably(self._path, _FORMAT.encode(tables))


def _lowest_limit(table: Mapping[str, int], key: tuple[str, str, str]) -> int | None:
    return min((limit for _, limit in _matching(table, key)), default=None)


def _matching(table: Mapping[str, T], key: tuple[str, str, str]) -> Iterator[tuple[str, T]]:
    """Yield the rows that match the key, in insertion order."""
    for pattern, value in table.items():
        if all(fnmatchcase(part, piece) for part, piece in zip(key, pattern.split("/"), strict=True)):
            yield pattern, value


def _validated_limits(table: Mapping[str, object]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for key, limit in table.items():
        if len(key.split("/")) != _PARTS or not isinstance(limit, int) or limit < 0:
            message = f"{key!r}: {limit!r} is not a valid row; example: 'us-east-1c/p3dn.24xlarge/on-demand': 0"
            raise ValueError(message)
        rows[key] = limit
    return rows


def _validated_prices(table: Mapping[str, object]) -> dict[str, str]:
    rows: dict[str, str] = {}
    for key, usd in table.items():
        if len(key.split("/")) != _PARTS or not isinstance(usd, str) or not _is_price(usd):
            message = f"{key!r}: {usd!r} is not a valid row; example: 'us-east-1/p3dn.24xlarge/on-demand': '29.5'"
            raise ValueError(message)
        rows[key] = usd
    return rows


def _is_price(text: str) -> bool:
    try:
        return decode_as(Decimal, text) > 0
    except ValueError:
        return False
