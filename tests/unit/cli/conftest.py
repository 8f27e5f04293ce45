"""Shared fixtures with fixed values for the CLI tests."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from cloudgpu.app.cluster_status import ClusterStatus
from cloudgpu.app.runs.outcome import RunOutcome
from cloudgpu.recipe.schema import Metric, Reference
from cloudgpu.run.metrics import Measured
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.run_records import RunRecord
from tests.cluster_records import cluster_record

NOW = datetime(2026, 11, 21, 3, 30, tzinfo=UTC)


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
def cluster() -> ClusterRecord:
    return cluster_record(
        name="s1",
        token="t",
        owner="ann",
        team="vision",
        recipe="quickstart",
        target="rehearsal",
        account="123456789012",
        endpoint="rehearsal:x",
        created_at=NOW - timedelta(minutes=10),
        expires_at=NOW + timedelta(minutes=50),
        made_by="up",
        state="up",
        regions=("us-east-1",),
        region="us-east-1",
        zone="us-east-1c",
        instance_type="p3dn.24xlarge",
        nodes=2,
        node_hourly_usd="31.212",
        instance_ids=("i-1", "i-2"),
        updated_at=NOW - timedelta(seconds=200),
    )


@pytest.fixture
def run() -> RunRecord:
    return RunRecord(
        run_id="quickstart-k3fz8w",
        cluster="quickstart-k3fz8w",
        recipe="quickstart",
        recipe_path="recipes/quickstart/recipe.yaml",
        owner="ann",
        team="vision",
        target="rehearsal",
        started_at=NOW - timedelta(minutes=3),
        state="succeeded",
        ranks={"0": (0,), "1": (1,)},
        stages=(
            *(("check data", 0.2), ("provision", 2.04), ("connect", 0.1), ("gate", 0.2), ("stage", 0.7)),
            *(("start", 0.3), ("train", 125.0), ("collect", 0.3), ("down", 0.8)),
        ),
        metrics={"accuracy": 0.9833},
        outputs=("outputs/metrics.json",),
        ended_at=NOW,
    )


@pytest.fixture
def measured() -> tuple[Measured, ...]:
    reference = Reference(value=0.9833, on="2 ranks on CPU", source="this recipe, seed 0")
    accuracy = Metric(pattern="a=(?P<value>.*)", better="higher", at_least=0.95, reference=reference)
    speed = Metric(pattern="s=(?P<value>.*)", better="higher", unit="img/s")
    return (
        Measured("accuracy", 0.9833, accuracy),
        Measured("images_per_s", 5847.0, speed),
        Measured("loss", None, speed),
    )


@pytest.fixture
def outcome(run: RunRecord, measured: tuple[Measured, ...]) -> RunOutcome:
    return RunOutcome(
        record=run,
        simulated=True,
        measured=measured,
        usd=Decimal("1.040400"),
        nodes=2,
        instance_type="p3dn.24xlarge",
        zone="us-east-1c",
        logs="home/runs/quickstart-k3fz8w/logs",
        outputs="home/runs/quickstart-k3fz8w/outputs",
    )


@pytest.fixture
def standing_status(cluster: ClusterRecord) -> ClusterStatus:
    return ClusterStatus(cluster, "up", 200.0, (), Decimal("10.40"))
