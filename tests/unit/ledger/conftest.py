from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.ledger.entry import Spending
from cloudgpu.ledger.store import Ledger, open_ledger

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def spending(entry_id: str = "e1", **changes: Any) -> Spending:
    values: dict[str, Any] = {
        "entry_id": entry_id,
        "cluster": "red",
        "run_id": "",
        "recipe": "quickstart",
        "owner": "ann",
        "team": "vision",
        "target": "aws",
        "simulated": False,
        "account": "123456789012",
        "endpoint": "",
        "region": "us-east-1",
        "zone": "us-east-1c",
        "instance_type": "p3dn.24xlarge",
        "market": "on-demand",
        "nodes": 2,
        "node_hourly_usd": Decimal("31.212"),
        "opened_at": NOON,
        "expires_at": NOON + timedelta(hours=8),
    }
    return Spending(**(values | changes))


@pytest.fixture
def make_spending() -> Callable[..., Spending]:
    return spending


@pytest.fixture
def noon() -> datetime:
    return NOON


@pytest.fixture
def ledger_path(tmp_path: Path) -> Path:
    return tmp_path / "a ?home#" / "ledger.sqlite3"


@pytest.fixture
def ledger(ledger_path: Path) -> Iterator[Ledger]:
    with open_ledger(f"sqlite:///{ledger_path}") as opened:
        yield opened
