"""How much of a type a zone still has, and how many vCPUs the account may run."""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from cloudgpu.errors import StateError
from cloudgpu.rehearsal.durable import write_durably

_PARTS = 3


class Market:
    """Two tables of limits, durable. Keys have three parts and may hold `*`.

    Capacity: `zone/type/market` -> instances that may exist at a time.
    Quotas: `region/bucket/market` -> vCPUs, where bucket is `p`, `g`, `standard` and the like.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.capacity: dict[str, int] = {}
        self.quotas: dict[str, int] = {}
        if path.exists():
            self._load()

    def put_capacity(self, table: Mapping[str, int]) -> None:
        """Replace the capacity table.

        Raises:
            ValueError: A key or figure makes no sense.
        """
        self.capacity = _checked(table)
        self._save()

    def put_quotas(self, table: Mapping[str, int]) -> None:
        """Replace the quota table.

        Raises:
            ValueError: A key or figure makes no sense.
        """
        self.quotas = _checked(table)
        self._save()

    def capacity_of(self, zone: str, instance_type: str, market: str) -> int | None:
        """Instances that may exist; None is unlimited. The tightest matching row holds."""
        return _tightest(self.capacity, (zone, instance_type, market))

    def quota_of(self, region: str, bucket: str, market: str) -> int | None:
        """VCPUs that may run; None is unlimited."""
        return _tightest(self.quotas, (region, bucket, market))

    def _load(self) -> None:
        try:
            row = json.loads(self._path.read_text(encoding="utf-8"))
            self.capacity, self.quotas = _checked(row["capacity"]), _checked(row["quotas"])
        except (ValueError, KeyError, TypeError) as err:
            message = f"{self._path} is damaged"
            raise StateError(message, hint="delete it to go back to unlimited capacity") from err

    def _save(self) -> None:
        write_durably(self._path, json.dumps({"capacity": self.capacity, "quotas": self.quotas}).encode())


def _tightest(table: Mapping[str, int], key: tuple[str, str, str]) -> int | None:
    found = [
        limit
        for pattern, limit in table.items()
        if all(fnmatchcase(part, piece) for part, piece in zip(key, pattern.split("/"), strict=True))
    ]
    return min(found, default=None)


def _checked(table: Mapping[str, object]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for key, limit in table.items():
        if len(key.split("/")) != _PARTS or not isinstance(limit, int) or limit < 0:
            message = f"{key!r}: {limit!r} is not a row such as 'us-east-1c/p3dn.24xlarge/on-demand': 0"
            raise ValueError(message)
        rows[key] = limit
    return rows
