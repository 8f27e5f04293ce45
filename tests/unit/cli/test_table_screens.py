"""Every table of the command line at 80, 100 and 160 columns and in a pipe, compared with golden files."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from cloudgpu.app.diagnostics import Diagnosis, DiagnosticReport
from cloudgpu.app.matrix.outcome import MatrixOutcome, RowOutcome
from cloudgpu.app.planning.catalog_refresh import CatalogReading, CatalogStatus, RefreshResult, UnreadPart
from cloudgpu.app.planning.quota_report import quota_report_lines, report_subjects
from cloudgpu.backends.quota_headroom import RegionQuotas
from cloudgpu.backends.storage import RetainedResource
from cloudgpu.catalog import load
from cloudgpu.catalog.snapshot_changes import Change
from cloudgpu.cli.commands import catalog, hosts, image, matrix, quota, recipe, rehearsal, status
from cloudgpu.cli.commands.doctor import diagnostic_lines
from cloudgpu.cli.commands.plan import offers_lines
from cloudgpu.cli.commands.rehearsal import fault
from cloudgpu.cli.commands.storage import storage_lines
from cloudgpu.cli.main import main
from cloudgpu.cli.render import plan
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.cloud import OwnImage
from cloudgpu.hosts.host import HostsFile, Jump, OwnHost
from cloudgpu.plan import planner
from cloudgpu.plan.candidate_list import explain_candidates
from cloudgpu.plan.capacity import VcpuHeadroom
from cloudgpu.plan.host_sets import HostSet
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe import loader
from cloudgpu.recipe.documentation import Summary
from cloudgpu.recipe.loader import resolve
from cloudgpu.recipe.schema import Metric
from cloudgpu.rehearsal.client import NodeInfo, RehearsalClient, RehearsalStatus
from cloudgpu.rehearsal.faults.scripts import FaultScript
from cloudgpu.run.metrics import Measured
from cloudgpu.state.catalog_snapshots import History, SnapshotEntry
from cloudgpu.state.run_records import MatrixRecord, MatrixRow
from tests.screens import screens

HERE = Path(__file__).parent
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def check(name: str, render: Callable[[int | None], list[str]]) -> None:
    expected = HERE / "golden" / "tables" / f"{name}.txt"
    assert screens(render) == expected.read_text(encoding="utf-8"), f"write the new text to {expected} if it is meant"


def test_config(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CLOUDGPU_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/home/ann.archer")
    monkeypatch.setenv("CLOUDGPU_HOME", "/nonexistent/ann.archer/projects/cloudgpu-home")
    monkeypatch.setenv("CLOUDGPU_OWNER", "ann.archer@example.com")
    monkeypatch.setenv("CLOUDGPU_TEAM", "vision")

    def render(width):
        monkeypatch.setattr(Screen, "width", width)
        assert main(["config"]) == 0
        return capsys.readouterr().out.splitlines()

    check("config", render)


def test_recipe_list():
    wide = Summary(
        name="tensorflow-resnet50",
        description="ResNet-50 on synthetic ImageNet, mirrored over all GPUs of all nodes, with TensorBoard.",
        nodes=2,
        hardware="2 x p3dn.24xlarge or p4d.24xlarge",
        launcher="tf-config",
        software="123456789012.dkr.ecr.us-east-1.amazonaws.com/teams/vision/tensorflow-with-data-loaders:24.03-tf2-py3",
        reference="images_per_s 17,250 img/s",
        parameters=(),
    )
    python = replace(
        wide,
        name="hf-finetune",
        description="",
        hardware="1 x g6.xlarge or g5.xlarge",
        launcher="torchrun",
        software="torch>=2.6,<2.11 transformers>=5.0,<6 accelerate>=1.1 datasets>=3.0",
        reference="",
    )
    invalid = recipe.CheckedRecipe(Path("recipes/odd one/recipe.yaml"), "odd", ("problem", "problem"))
    check("recipe-list", lambda width: recipe.list_lines([wide, python], [invalid], width))


def test_status_all(standing_status, run, now):
    runs = [
        replace(run, run_id="resnet50-kvstore-sweep-a1b2c3", state="running", ended_at=None),
        replace(run, run_id="pytorch-resnet50-x7y8z9", metrics={"images_per_s": 7850.0, "top1_accuracy": 0.761}),
        replace(run, state="failed", reason="rank 3 on node 1 failed with exit code 137 (out of memory, or killed)"),
    ]
    cluster = replace(standing_status, problem="DescribeInstances: the security token in the request has expired")

    def render(width):
        listed = status.run_lines(runs, ["bad-3"], [cluster], now, {"bad-3": "line 1 of run.json is not JSON"}, width)
        return [*status.status_lines([cluster], now, width), *listed]

    check("status-all", render)


def test_rehearsal_status():
    cloud = RehearsalClient("http://127.0.0.1:4711", "AKIA", "secret", pid=7)
    node = NodeInfo(
        *("i-0123456789abcdef0", "p3dn.24xlarge", "us-east-1", "us-east-1c", "running", "127.55.0.2", 2222, "ubuntu"),
        *("SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDfNfm1cRO4U2rKxZ4", "quickstart-k3fz8w"),
    )
    nodes = (node, replace(node, instance_id="i-0fedcba9876543210", state="pending", address=""))
    shown = RehearsalStatus(cloud, nodes, (), 189.7)
    check("rehearsal-status", lambda width: rehearsal.status_lines(shown, NOW, width))


def test_rehearsal_fault_list():
    library = (
        FaultScript("zone-dry", "One zone has no capacity, but the other zones do."),
        FaultScript("eventual-consistency", "A new resource is not found by the first call that refers to it."),
    )
    check("rehearsal-fault-list", lambda width: fault.library_lines(library, ["zone-dry"], width))


def test_quota():
    found = (
        RegionQuotas("us-east-1", {"L-417A185B": 192, "L-7212CCBC": 0}, NOW, {"L-417A185B": 96}, NOW),
        RegionQuotas("ap-southeast-2", None, None, {}, NOW, ("reading the quotas of ap-southeast-2: denied",)),
    )
    rows = quota_report_lines(found, report_subjects(load(), gpu="V100", instance_type=""), ["on-demand", "spot"], 2)
    check("quota", lambda width: quota.quota_lines(rows, found, "aws", NOW + timedelta(minutes=5), width))


def test_catalog_show():
    entry = SnapshotEntry(3, NOW, "111122223333", ("us-east-1",), 2, "1 price changed", ())
    known = (
        CatalogReading("us-east-1", "on_demand", 63, NOW, "Pricing GetProducts"),
        CatalogReading("ap-southeast-2", "spot", 1204, NOW, "EC2 DescribeSpotPriceHistory of the last 7 days"),
    )
    day = date(2026, 7, 20)
    shown = CatalogStatus(
        "aws", entry, known, {}, (day, day), 64, ("AWS price list of 2026-07-20, on-demand and spot",)
    )
    check("catalog-show", lambda width: catalog.catalog_status_lines(shown, NOW + timedelta(hours=3), width))


def test_catalog_history():
    first = SnapshotEntry(3, NOW, "1", ("us-east-1", "us-east-2", "eu-central-1"), 2, "1 price changed", ())
    second = SnapshotEntry(14, NOW, "1", ("us-east-1",), 3, "2 prices, 31 spot prices and 4 zones changed", ())
    check("catalog-history", lambda width: catalog.history_lines(History(14, (first, second)), "aws", width))


def test_image_list():
    tags = {"cloudgpu:gpu-architecture": "Volta", "cloudgpu:owner": "ann.archer@example.com"}
    made = OwnImage("ami-0123456789abcdef0", "pytorch-volta-2026-11", "us-east-1", "available", NOW, 150, (), tags)
    lost = replace(made, id="", name="pytorch-ampere-2026-10", state="snapshots only", tags={})
    check("image-list", lambda width: image.image_lines([made, lost], NOW + timedelta(days=3), "us-east-1", width))


def test_storage_list():
    lustre = RetainedResource(
        noun="storage",
        token="t",
        name="imagenet-training-set",
        kind="lustre",
        region="us-east-1",
        owner="ann.archer@example.com",
        state="available",
        disposable=False,
        size_gib=Decimal(1200),
        monthly_usd=Decimal("168.00"),
        since=NOW - timedelta(days=3),
        users=("i-0123456789abcdef0 (cluster demo)", "i-0fedcba9876543210 (cluster demo)"),
        simulated=True,
        id="fs-1",
    )
    bucket = replace(lustre, name="checkpoints", kind="s3", disposable=True, size_gib=None, users=(), monthly_usd=None)
    check("storage-list", lambda width: storage_lines([lustre, bucket], NOW, width))


def test_hosts_list():
    red = OwnHost("red", "red.machines.example.com", 22, "ubuntu", 3, gpu="V100", gpus=8, gpu_memory_gib=Decimal(32))
    red = replace(red, driver="550.54.14", rate_usd=Decimal("1.5"), pool="basement", host_keys=("ssh-ed25519 AAAA",))
    blue = replace(red, name="blue", address="10.20.30.40", port=2222, jump=Jump("ann", "gate.example.com", 22))
    blue = replace(blue, gpus=0, driver="", rate_usd=None, host_keys=())
    file = HostsFile(Path("/data/ann/.cloudgpu/hosts.yaml"), (red, blue))
    check("hosts-list", lambda width: hosts.inventory_lines(file, file.hosts, width))


def matrix_outcome() -> MatrixOutcome:
    reference = {"value": 8000, "on": "8 x V100", "source": "a paper"}
    speed = {"pattern": "(?P<value>.)", "unit": "img/s", "better": "higher", "reference": reference}
    loss = Metric.model_validate({"pattern": "(?P<value>.)", "better": "lower"})
    rows = tuple(
        RowOutcome(
            (("kvstore", kvstore), ("compression", "2bit")),
            "succeeded",
            measured=(Measured("images_per_s", value, Metric.model_validate(speed)), Measured("loss", 1.25, loss)),
            run_id=f"mxnet-imagenet-{kvstore.replace('_', '-')}-2bit",
            digest="d1",
            seconds=125.0,
            usd=Decimal("1.04"),
            best=frozenset({"images_per_s"} if value > 8000 else ()),
        )
        for kvstore, value in (("dist_device_sync", 7850.0), ("dist_async", 8160.5))
    )
    record = MatrixRecord(
        name="mxnet-imagenet-3f09ab",
        recipe="mxnet-imagenet",
        recipe_path="/r/mx/recipe.yaml",
        target="aws",
        axes=(("kvstore", ("dist_device_sync", "dist_async")), ("compression", ("2bit",))),
        sets=(),
        created_at=NOW - timedelta(hours=3),
        rows=tuple(MatrixRow(one.values) for one in rows),
    )
    return MatrixOutcome(record, rows, Decimal("62.42"), "/state/matrices/mxnet-imagenet-3f09ab/results.csv")


def test_matrix_list():
    reasons = {"odd-123456": "line 3 of matrix.json is not JSON"}
    check("matrix-list", lambda width: matrix.list_lines([matrix_outcome()], ["odd-123456"], NOW, reasons, width))


def test_matrix_show():
    check("matrix-show", lambda width: matrix.outcome_lines(matrix_outcome(), width))


def planner_input() -> PlannerInput:
    quickstart = loader.load(HERE.parents[2] / "recipes" / "quickstart" / "recipe.yaml")
    quotas = {("us-east-1", "P"): VcpuHeadroom(384, 0, NOW)}
    return PlannerInput(
        resolve(quickstart, sets={}, rehearsal=False),
        target="aws",
        catalog=load(),
        quotes=Quotes(quotas=quotas),
        default_region="us-east-1",
        today=date(2026, 8, 1),
    )


def test_plan():
    planned = planner.build_plan(planner_input())
    check("plan", lambda width: plan.plan_lines(planned, "quickstart-1", width))


def test_plan_summary():
    planned = planner.build_plan(planner_input())
    check("plan-summary", lambda width: plan.plan_summary(planned, "", "cloudgpu plan quickstart", width))


def test_plan_on_hosts():
    pair = HostSet(
        *("", "", "", "own", Decimal("3.0"), date(2026, 8, 1), "V100", 8, Decimal(32), 0, ""),
        hosts=("red.machines.example.com", "blue.machines.example.com"),
        pool="basement",
        rates=(Decimal("1.5"), None),
        of_gpus=8,
    )
    sets = [pair, replace(pair, hosts=("green",), rates=(Decimal("0.75"),), gpus_per_node=4, pool="")]
    check("plan-on-hosts", lambda width: plan.host_lines(sets, width))


def test_offers():
    asked = planner_input()
    planned = planner.build_plan(asked)
    check("offers", lambda width: offers_lines(planned, asked, explain_candidates(asked), width))


def test_doctor():
    fix = "run `aws configure` or `aws sso login`; without an AWS account, use --on rehearsal"
    checks = (
        Diagnosis("SSH key", "ok", "/data/ann/.cloudgpu/ssh/id_ed25519"),
        Diagnosis("credentials", "unknown", "no AWS credentials were found: no environment, no profile has any", fix),
    )
    report = DiagnosticReport("aws", "us-east-1", checks)
    check("doctor", lambda width: diagnostic_lines(report, width))


def test_catalog_refresh():
    entry = SnapshotEntry(3, NOW, "111122223333", ("us-east-1",), 2, "1 price changed", ())
    reason = "reading the price list of us-east-1: the identity lacks the permission pricing:GetProducts"
    change = Change("price", "p3dn.24xlarge", "us-east-1", "31.212", "29.5")
    refreshed = RefreshResult(entry, "aws", (change,), (UnreadPart("us-east-1", "on_demand", reason),), {})
    check("catalog-refresh", lambda width: catalog.refresh_lines(refreshed, width))
