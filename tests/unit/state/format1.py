"""The values in `fixtures/format1`, a state home that cloudgpu wrote before its files carried a `format` number.

The files are frozen: no later version of cloudgpu rewrites them. Add values for new formats in another folder.
"""

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

from cloudgpu.backends.quota_headroom import RegionQuotas
from cloudgpu.catalog.snapshot import CatalogSnapshot, Reading, RegionReadings, Retirement, TypeFacts
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.plan.costs import CostItem
from cloudgpu.state.catalog_snapshots import History, SnapshotEntry
from cloudgpu.state.run_records import MatrixRecord, MatrixRow, RunRecord
from cloudgpu.state.storage_records import AttachedStorage, StorageRecord
from tests.cluster_records import changed, cluster_record

ROOT = Path(__file__).parent / "fixtures" / "format1"
NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
LATER = datetime(2026, 11, 22, 12, 3, 4, 567890, tzinfo=UTC)
NOTED = datetime(2026, 11, 22, 12, 5, tzinfo=UTC)

_DISKS = CostItem("disks", 2, "disks of 200 GiB (gp3)", Decimal("0.0438"), date(2026, 11, 1), "AWS price list")
_TRAFFIC = CostItem("transfer", 1, "traffic to the internet", None, None, "", per="once")
_GATEWAY = CostItem("gateway", 1, "NAT gateway", Decimal("0.045"), date(2026, 11, 1), "AWS", whole_hours=True)

_MAKING = cluster_record(
    name="making",
    token="0123456789abcdef0123456789abcdef",
    owner="ana",
    team="vision",
    recipe="quickstart",
    target="aws",
    account="123456789012",
    endpoint="",
    created_at=NOW,
    expires_at=datetime(2026, 11, 23, 12, 0, tzinfo=UTC),
    made_by="train",
    run_id="quickstart-k3fz8w",
    updated_at=LATER,
)
_UP = changed(
    _MAKING,
    name="up",
    made_by="up",
    run_id="",
    state="up",
    regions=("us-west-2", "us-east-1"),
    region="us-east-1",
    zone="us-east-1a",
    instance_type="p4d.24xlarge",
    market="spot",
    nodes=2,
    node_hourly_usd="9.8318",
    beside=(_DISKS.as_json(), _TRAFFIC.as_json(), _GATEWAY.as_json()),
    gpu="A100",
    gpus_per_node=8,
    image="ami-0123456789abcdef0",
    image_parameter="/aws/service/deeplearning/ami",
    config={"zone": "us-east-1a", "nodes": "2", "title": "größer"},
    instance_ids=("i-0123456789abcdef0", "i-0123456789abcdef1"),
    max_usd="120.50",
)
CLUSTERS = {
    "making": _MAKING,
    "up": _UP,
    "extended": changed(
        _UP,
        name="extended",
        engine="pulumi",
        expires_at=datetime(2026, 11, 24, 12, 0, tzinfo=UTC),
        first_expires_at=datetime(2026, 11, 23, 12, 0, tzinfo=UTC),
        confirmed_expires_at=datetime(2026, 11, 23, 18, 0, tzinfo=UTC),
    ),
    "mounted": changed(
        _UP,
        name="mounted",
        target="rehearsal",
        endpoint="http://127.0.0.1:4566",
        storage=(
            AttachedStorage("data", "data", "efs", "us-east-1", "", "/data", "rw", ends=False, id="fs-1"),
            AttachedStorage("tmp-0a1b2c3d", "tmp", "ebs", "us-east-1", "us-east-1a", "/scratch", "ro", ends=True),
        ),
    ),
    "ending": changed(_UP, name="ending", state="ending"),
    "hosts": changed(_UP, name="hosts", target="ssh", account="", instance_ids=("box-1@hosts",), config={}, beside=()),
}
OLDEST_CLUSTER = changed(_MAKING, name="oldest", run_id="", updated_at=None)
"""Its file has only the fields without a default, as in the first version."""

_PREPARING = RunRecord(
    run_id="preparing-222222",
    cluster="up",
    recipe="quickstart",
    recipe_path="/u/ana/recipes/quickstart/recipe.yaml",
    owner="ana",
    team="",
    target="aws",
    started_at=NOW,
)
_RUNNING = replace(
    _PREPARING,
    run_id="running-333333",
    state="running",
    keep=True,
    tried=("us-east-1b p4d.24xlarge spot: no capacity (InsufficientInstanceCapacity): none left",),
    resolved={"schema": 1, "name": "quickstart", "outputs": ["*.pt"], "nested": {"lr": 1e-3, "none": None}},
    recipe_digest="sha256:" + "0" * 64,
    image="nvcr.io/nvidia/pytorch@sha256:" + "1" * 64,
    ranks={"0": (0, 1), "1": (2, 3)},
    stages=(("plan", 0.5), ("provision", 61.25)),
    metrics={"loss": 0.25, "steps_per_s": 12.5},
)
RUNS = {
    run.run_id: run
    for run in (
        _PREPARING,
        _RUNNING,
        replace(_RUNNING, run_id="succeeded-444444", state="succeeded", outputs=("model.pt",), collected=True),
        replace(
            _RUNNING,
            run_id="failed-555555",
            state="failed",
            keep_on_failure=True,
            metrics={"loss": float("inf")},
            reason="rank 1 exited with code 137",
            failed_rank=1,
            exit_code=137,
            collected=False,
            ended_at=LATER,
        ),
        replace(_PREPARING, run_id="cancelled-666666", state="cancelled", reason="its cluster was deleted"),
        replace(_RUNNING, run_id="lost-777777", state="lost", recipe_path="/u/ana/\udcff/recipe.yaml"),
    )
}
DIVERGED_RUN = "diverged-888888"
"""A run whose loss is NaN, which equals nothing; its other fields are those of `running-333333`."""

MATRICES = {
    "lr": MatrixRecord(
        name="lr",
        recipe="quickstart",
        recipe_path="/u/ana/recipes/quickstart/recipe.yaml",
        target="aws",
        axes=(("env.LR", ("0.1", "0.01")), ("nodes", ("1",))),
        sets=("budget.expiry=2h",),
        created_at=NOW,
        rows=(
            MatrixRow((("env.LR", "0.1"), ("nodes", "1")), "sha256:0", "quickstart-k3fz8w"),
            MatrixRow((("env.LR", "0.01"), ("nodes", "1")), reason="no capacity"),
        ),
        cluster="up",
        token="0123456789abcdef",
        made=True,
        spent={"fedcba9876543210": "1.50"},
    ),
    "new": MatrixRecord("new", "quickstart", "recipe.yaml", "rehearsal", (("env.LR", ("1",)),), (), NOW, ()),
}

_DATA = StorageRecord(
    "data", "efs", "t0", "ana", "", "aws", "123456789012", "", "us-east-1", NOW, disposable=False, made_for=""
)
STORAGE = {
    "data": replace(
        _DATA,
        state="ready",
        engine="pulumi",
        config={"sizeGib": "100"},
        outputs={"id": "fs-1", "address": "fs-1.efs.us-east-1.amazonaws.com", "mountName": None},
    ),
    "scratch": replace(_DATA, name="scratch", kind="ebs", disposable=True, state="deleting", made_for="up"),
}

_NODE = Node(
    0,
    "i-0123456789abcdef0",
    "203.0.113.7",
    22,
    "ubuntu",
    ("SHA256:" + "A" * 43,),
    "10.0.0.1",
    "p4d.24xlarge",
    "us-east-1a",
    "A100",
    8,
    simulated=False,
)
INVENTORIES = {
    "up": Inventory(
        "up", (_NODE, replace(_NODE, index=1, instance_id="i-0123456789abcdef1", jump=0, reach="ssm", port=2222))
    ),
    "hosts": Inventory(
        "hosts",
        (
            replace(
                _NODE,
                instance_id="box-1",
                bastion="ana@gate:2200",
                bastion_keys=("SHA256:" + "B" * 43,),
                key="/u/ana/.ssh/id_ed25519",
                devices=(0, 3),
                interface="eth1",
                base=".cloudgpu/hosts/hosts-0123",
            ),
        ),
    ),
}
SSH_FOLDER = "/u/ana/.ssh"
"""Folder in the `ssh-config.json` of cluster `up`."""

COOLDOWNS = {("p4d.24xlarge", "us-east-1a", "spot"): 60, ("g5.xlarge", "us-east-1b", "on-demand"): 60}
"""Seconds since each failure, one minute after `NOTED`, for account 123456789012."""

_FACTS = TypeFacts("V100", 8, Decimal("16"), 96, 768, 1, 1, "100 Gigabit", ("on-demand", "spot"), 2, 900, current=True)
SNAPSHOTS = {
    1: CatalogSnapshot("aws", "123456789012", "", {}, {"p2.xlarge": Retirement(date(2026, 1, 1), "EC2")}),
    2: CatalogSnapshot(
        "aws",
        "123456789012",
        "",
        {
            "us-east-1": RegionReadings(
                types=Reading(NOW, "EC2", {"p3dn.24xlarge": _FACTS, "p9.new": replace(_FACTS, gpu="H100", gpus=4)}),
                zones=Reading(NOW, "EC2", {"p3dn.24xlarge": ("us-east-1a", "us-east-1b")}),
                on_demand=Reading(NOW, "price list", {"p3dn.24xlarge": Decimal("31.212")}),
                spot=Reading(NOW, "EC2", {"p3dn.24xlarge": (Decimal("9.3"), Decimal("12.1"))}),
                images=Reading(NOW, "SSM", {"/aws/service/ami": "ami-0123456789abcdef0"}),
                quotas=Reading(NOW, "Service Quotas", {"L-417A185B": 192}),
            )
        },
        {"p2.xlarge": Retirement(date(2026, 1, 1), "EC2")},
    ),
}
HISTORY = History(
    2,
    (
        SnapshotEntry(1, NOW, "123456789012", (), 0, "1 type retired", ("p2.xlarge: retired",)),
        SnapshotEntry(2, LATER, "123456789012", ("us-east-1",), 1, "1 price", ("p3dn.24xlarge: 31.212",)),
    ),
)
QUOTAS = (
    RegionQuotas("eu-west-1"),
    RegionQuotas("us-east-1", {"L-417A185B": 96}, NOW, {"L-417A185B": 8, "L-3819A6DF": None}, LATER),
)
