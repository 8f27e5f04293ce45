"""Test cases for the checks of mounted storage."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

from cloudgpu.plan.plan import Quotes, StorageSeen
from tests.unit.plan.checks.worlds import ONE, TWO, PlanInputs, fails, row

MOUNTED = {"name": "results", "to": "/results"}
LUSTRE = StorageSeen(
    name="results",
    kind="lustre",
    region="us-east-1",
    zone="us-east-1c",
    ready=True,
    owner="ann",
    users=(),
    monthly_usd=Decimal(168),
)


def mounting(*found: StorageSeen, hardware: Any = TWO, **wanted: Any) -> PlanInputs:
    recipe = {"storage": [{**MOUNTED, **wanted}], "resources": hardware}
    return PlanInputs(recipe, Quotes(live=True, storage={"results": found}))


STORAGE = (
    row(
        "storage",
        (PlanInputs(), mounting(LUSTRE), mounting(replace(LUSTRE, kind="ebs"), hardware=ONE)),
        fails(
            PlanInputs({"storage": [MOUNTED]}, Quotes()),
            (
                "unknown",
                "cannot tell whether storage results exists or which zone it is in: the cloud was not queried",
                "plan without --offline",
            ),
        ),
        fails(
            mounting(),
            (
                "error",
                "storage results does not exist in us-east-1",
                "cloudgpu storage create results, or add `make` to the storage in the recipe",
            ),
        ),
        fails(
            mounting(replace(LUSTRE, kind="ebs", users=("i-1",))),
            (
                "error",
                "storage results is an EBS volume, which only one node can mount, but the cluster has 2",
                "--set resources.nodes=1",
            ),
            (
                "warning",
                "storage results is attached to i-1",
                "first delete the cluster that uses it, unless this run reuses that cluster",
            ),
        ),
        fails(
            mounting(replace(LUSTRE, region="us-west-2", zone="us-west-2b")),
            (
                "error",
                "storage results is in us-west-2, not in us-east-1",
                "--set resources.regions=us-west-2",
            ),
        ),
    ),
    row(
        "storage-zone",
        (PlanInputs(), mounting(replace(LUSTRE, kind="efs", zone=""))),
        fails(mounting(LUSTRE), ("note", "storage results is in us-east-1c: other zones are excluded", "")),
    ),
    row(
        "storage-kept",
        (PlanInputs(), mounting(LUSTRE)),
        fails(
            mounting(make={"kind": "efs"}, keep=True),
            (
                "note",
                "storage results is created with the cluster and kept when the cluster is deleted",
                "cloudgpu storage delete results --delete-data deletes it",
            ),
        ),
        fails(
            mounting(make={"kind": "s3"}, keep=False),
            ("note", "storage results is created for this cluster and deleted with it, including its data", ""),
        ),
    ),
)
