"""Valid files of the state home, used as seeds by the fuzz targets."""

from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from decimal import Decimal

from cloudgpu.app.planning import plan_files
from cloudgpu.catalog.snapshot import CatalogSnapshot, Reading, RegionReadings, Retirement, TypeFacts
from cloudgpu.launch.inventory import Node
from cloudgpu.plan.candidate import Candidate
from cloudgpu.plan.costs import CostItem
from cloudgpu.state.catalog_snapshots import SnapshotEntry
from cloudgpu.state.run_records import MatrixRecord, MatrixRow, RunRecord
from cloudgpu.state.storage_records import AttachedStorage, StorageRecord
from tests.cluster_records import cluster_record
from tests.manual_clock import ManualClock

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
CLOCK = ManualClock(NOW)
DISK = CostItem("disks", 2, "disks of 200 GiB (gp3)", Decimal("0.0438"), date(2026, 11, 1), "AWS price list")
CLUSTER = cluster_record(
    name="lab",
    token="0123456789abcdef",
    owner="ana",
    team="vision",
    recipe="quickstart",
    target="aws",
    account="123456789012",
    endpoint="",
    created_at=NOW,
    expires_at=datetime(2026, 11, 23, 12, 0, tzinfo=UTC),
    made_by="up",
    state="up",
    regions=("us-east-1",),
    region="us-east-1",
    zone="us-east-1a",
    instance_type="g5.xlarge",
    market="on-demand",
    nodes=2,
    node_hourly_usd="1.006",
    beside=(DISK.as_json(),),
    gpu="A10G",
    gpus_per_node=1,
    config={"zone": "us-east-1a", "nodes": "2"},
    instance_ids=("i-0123456789abcdef0", "i-0123456789abcdef1"),
    updated_at=NOW,
    storage=(AttachedStorage("data", "data", "efs", "us-east-1", "", "/data", "rw", ends=False),),
    confirmed_expires_at=NOW,
)
RUN = RunRecord(
    run_id="quickstart-20261122-120000-ab12",
    cluster="lab",
    recipe="quickstart",
    recipe_path="/recipes/quickstart/recipe.yaml",
    owner="ana",
    team="",
    target="aws",
    started_at=NOW,
    state="failed",
    tried=("us-east-1a g5.xlarge on-demand: no capacity (InsufficientInstanceCapacity): no more",),
    resolved={"schema": 1, "name": "quickstart"},
    ranks={"0": (0, 1), "1": (2, 3)},
    stages=(("plan", 0.5), ("train", 61.25)),
    metrics={"loss": 0.25, "steps_per_s": 12.5},
    reason="rank 1 ended with exit code 1",
    failed_rank=1,
    exit_code=1,
    outputs=("model.pt",),
    ended_at=NOW,
)
MATRIX = MatrixRecord(
    name="lr",
    recipe="quickstart",
    recipe_path="/recipes/quickstart/recipe.yaml",
    target="aws",
    axes=(("env.LR", ("0.1", "0.01")),),
    sets=("nodes=2",),
    created_at=NOW,
    rows=(MatrixRow((("env.LR", "0.1"),), "sha256:0", "run-1"), MatrixRow((("env.LR", "0.01"),), reason="none left")),
    cluster="lab",
    token="t",
    made=True,
    spent={"t": "1.50"},
)
STORAGE = StorageRecord(
    "data",
    "efs",
    "t0",
    "ana",
    "",
    "aws",
    "123456789012",
    "",
    "us-east-1",
    NOW,
    disposable=False,
    config={"sizeGib": "100"},
    outputs={"id": "fs-1", "address": "fs-1.efs.us-east-1.amazonaws.com", "mountName": None},
)
NODE = Node(
    0,
    "i-0",
    "127.0.0.2",
    22,
    "ubuntu",
    ("SHA256:" + "A" * 43,),
    "10.0.0.1",
    "g5.xlarge",
    "us-east-1a",
    "A10G",
    1,
    simulated=False,
    devices=(0, 1),
)
FACTS = TypeFacts("V100", 8, Decimal("16"), 96, 768, 1, 1, "100 Gigabit", ("on-demand", "spot"), 2, 900, current=True)
SNAPSHOT = CatalogSnapshot(
    "aws",
    "123456789012",
    "",
    {
        "us-east-1": RegionReadings(
            types=Reading(NOW, "EC2", {"p3dn.24xlarge": FACTS, "p9.new": replace(FACTS, gpu="H100", gpus=4)}),
            zones=Reading(NOW, "EC2", {"p3dn.24xlarge": ("us-east-1a",)}),
            on_demand=Reading(NOW, "price list", {"p3dn.24xlarge": Decimal("31.212")}),
            spot=Reading(NOW, "EC2", {"p3dn.24xlarge": (Decimal("9.3"), Decimal("12.1"))}),
            images=Reading(NOW, "SSM", {"/aws/service/ami": "ami-0123456789abcdef0"}),
            quotas=Reading(NOW, "Service Quotas", {"L-417A185B": 192}),
        )
    },
    {"p2.xlarge": Retirement(date(2026, 1, 1), "EC2")},
)
INDEX = {
    "schema": 1,
    "current": 1,
    "entries": [
        {**asdict(SnapshotEntry(1, NOW, "123456789012", ("us-east-1",), 0, "one", ("a",))), "at": NOW.isoformat()}
    ],
}
CANDIDATE = Candidate(
    "g5.xlarge",
    "us-east-1",
    "us-east-1a",
    "on-demand",
    Decimal("1.006"),
    date(2026, 11, 1),
    "A10G",
    1,
    Decimal("22.4"),
    0,
    "ami-1",
    "/aws/ami",
    public_address=True,
    beside=(DISK,),
    source="AWS price list",
)
PLAN = plan_files.StoredPlan(
    NOW.isoformat(),
    "1.0",
    "/r/recipe.yaml",
    ("nodes=2",),
    "us-east-1",
    plan_files.PlanInputs("aws", "123456789012", "", "r", "w", "c"),
    {"nodes": 2, "ranks_per_node": 1, "expiry_s": 3600, "starts_at": None, "candidates": [CANDIDATE.as_json()]},
)
