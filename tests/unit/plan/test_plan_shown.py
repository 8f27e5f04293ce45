"""The plan as printed before launch, compared word for word."""

from datetime import date
from decimal import Decimal
from pathlib import Path

from cloudgpu.catalog import load
from cloudgpu.cli.render.plan import plan_lines
from cloudgpu.plan import planner
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe import loader
from cloudgpu.recipe.loader import resolve
from cloudgpu.recipe.schema import Recipe

QUICKSTART = loader.load(Path(__file__).parents[3] / "recipes" / "quickstart" / "recipe.yaml")


def shown(target="aws", today=date(2026, 8, 1), **sets):
    recipe = resolve(
        QUICKSTART,
        sets={name.replace("__", "."): value for name, value in sets.items()},
        rehearsal=target == "rehearsal",
    )
    plan = planner.build_plan(
        PlannerInput(recipe, target=target, catalog=load(), quotes=Quotes(), default_region="us-east-1", today=today)
    )
    return "\n".join(plan_lines(plan, "quickstart-1"))


def test_quickstart_rehearsal_plan_matches_expected_text():
    assert (
        shown("rehearsal", today=date(2026, 11, 21))
        == """\
quickstart on 2 x p3dn.24xlarge (8 x V100 32 GiB each)  [simulated]
cluster quickstart-1: 2 ranks (1 per node in rehearsals), expires after 1h

  try  type           zone        market     EFA  USD/h per node  priced on
    1  p3dn.24xlarge  us-east-1c  on-demand    1          31.212  2026-07-20
    2  p3dn.24xlarge  us-east-1d  on-demand    1          31.212  2026-07-20

p3dn.24xlarge: driver 580 proprietary (bootstrap), CUDA from the Python packages
    image /aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id

  at most                    USD/h  USD in 1h  priced on
  2 nodes p3dn.24xlarge     62.424      62.43  2026-07-20
  2 disks of 200 GiB (gp3)  0.0445       0.05  2026-11-21
  2 public IPv4 addresses     0.01       0.01  2026-11-21

worst case on AWS: 62.48 USD until the cluster expires after 1h (simulated: nothing is charged)
unknown: planned offline, without querying zones, subnets, machine images, quotas, data in S3 [offline]
    fix: plan without --offline
note: the oldest price was read on 2026-07-20, 124 days ago [price-age]"""
    )


def test_quickstart_aws_plan_matches_expected_text():
    assert (
        shown()
        == """\
quickstart on 2 x p3dn.24xlarge (8 x V100 32 GiB each)
cluster quickstart-1: 16 ranks (8 per node), expires after 1h

  try  type           zone        market     EFA  USD/h per node  priced on
    1  p3dn.24xlarge  us-east-1c  on-demand    1          31.212  2026-07-20
    2  p3dn.24xlarge  us-east-1d  on-demand    1          31.212  2026-07-20

p3dn.24xlarge: driver 580 proprietary (bootstrap), CUDA from the Python packages
    image /aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id
    set for ranks: FI_EFA_USE_HUGE_PAGE=0 (forked data loaders cannot inherit the huge pages that EFA uses without \
RDMA)

  at most                    USD/h  USD in 1h  priced on
  2 nodes p3dn.24xlarge     62.424      62.43  2026-07-20
  2 disks of 200 GiB (gp3)  0.0445       0.05  2026-11-21
  2 public IPv4 addresses     0.01       0.01  2026-11-21

worst case: 62.48 USD until the cluster expires after 1h
unknown: planned offline, without querying zones, subnets, machine images, quotas, data in S3 [offline]
    fix: plan without --offline
note: p3dn.24xlarge may not be available to new accounts: AWS has retired the other P3 types; the nearest type is \
p4d.24xlarge [new-account]
    fix: --set resources.instance_type=p4d.24xlarge"""
    )


def test_plan_with_excluded_types_matches_expected_text():
    assert (
        shown(resources__any_of="T4:4,p3.16xlarge", resources__nodes="1", resources__zones="us-east-1a")
        == """\
quickstart on 1 x g4dn.12xlarge (4 x T4 16 GiB)
cluster quickstart-1: 4 ranks, expires after 1h

  try  type           zone        market     EFA  USD/h per node  priced on
    1  g4dn.12xlarge  us-east-1a  on-demand    -           3.912  2026-07-20

g4dn.12xlarge: driver 595 open (machine image), CUDA from the Python packages
    image /aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id

  at most                   USD/h  USD in 1h  priced on
  1 node g4dn.12xlarge      3.912       3.92  2026-07-20
  1 disk of 200 GiB (gp3)  0.0223       0.03  2026-11-21
  1 public IPv4 address     0.005       0.01  2026-11-21

worst case: 3.94 USD until the cluster expires after 1h
warning: excluded: AWS retired p3.16xlarge on 2025-12-20, and it can no longer be launched; \
its successor is p3dn.24xlarge [retired]
    fix: --set resources.instance_type=p3dn.24xlarge
unknown: planned offline, without querying zones, subnets, machine images, quotas, data in S3 [offline]
    fix: plan without --offline"""
    )


def test_plan_without_candidates_matches_expected_text():
    assert (
        shown(resources__gpu="V10:8")
        == """\
quickstart on no available hardware
cluster quickstart-1: 2 ranks (1 per node), expires after 1h

no candidates

error: unknown GPU V10; did you mean "V100"? [gpu]
    fix: --set resources.gpu=V100:8  (2 x p3dn.24xlarge (8 x V100 32 GiB) in us-east-1, worst case 62.48 USD)
unknown: planned offline, without querying zones, subnets, machine images, quotas, data in S3 [offline]
    fix: plan without --offline"""
    )


def test_plan_text_shows_expected_cost_unpriced_items_and_kept_storage():
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "name": "long",
            "resources": {"instance_type": "p3dn.24xlarge", "disk": "100GiB"},
            "environment": {"container": {"image": "nvcr.io/nvidia/pytorch:24.12-py3"}},
            "storage": [{"name": "data", "to": "/data", "make": {"kind": "efs"}}],
            "launch": {"with": "torchrun", "command": "train.py"},
            "metrics": {
                "speed": {
                    "pattern": "s=(?P<value>.*)",
                    "unit": "img/s",
                    "better": "higher",
                    "reference": {"value": 7850, "on": "8 x V100", "source": "this test"},
                }
            },
            "work": {"metric": "speed", "amount": 115_300_000},
            "budget": {"max_usd": 400},
        }
    )
    zone = "ap-southeast-5a"
    quotes = Quotes(
        zones={("p3dn.24xlarge", "ap-southeast-5"): (zone,)},
        prices={("p3dn.24xlarge", zone, "on-demand"): Decimal(40)},
        live=True,
    )
    plan = planner.build_plan(
        PlannerInput(
            recipe,
            target="rehearsal",
            catalog=load(),
            quotes=quotes,
            default_region="ap-southeast-5",
            today=date(2026, 8, 1),
        )
    )
    lines = plan_lines(plan, "")
    start = lines.index("p3dn.24xlarge: driver 580 proprietary (bootstrap), CUDA 12.6.3 (container)")
    assert (
        "\n".join(lines[start : start + 12])
        == """\
p3dn.24xlarge: driver 580 proprietary (bootstrap), CUDA 12.6.3 (container)
    image /aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id
    container nvcr.io/nvidia/pytorch:24.12-py3

  at most                    USD/h  USD in 8h  priced on
  1 node p3dn.24xlarge          40     320.00  2026-08-01
  1 disk of 100 GiB (gp3)  unknown    unknown
  1 public IPv4 address      0.005       0.04  2026-11-21

worst case on AWS: 320.04 USD until the cluster expires after 8h, excluding 1 disk of 100 GiB (gp3) at an unknown \
price (simulated: nothing is charged)
expected: 163.23 USD for 4 h 04 min: 115,300,000 img at 7,850 img/s, as measured on 8 x V100
kept when the cluster is deleted: 1 storage data (efs, kept) at an unknown price"""
    )
