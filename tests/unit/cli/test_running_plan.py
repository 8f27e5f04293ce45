"""The plan for a cluster that is already running: its real expiry and cost, without offers that will not be used."""

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudgpu.catalog import load
from cloudgpu.cli.planning import show_plan
from cloudgpu.cli.render.plan import running_plan_lines
from cloudgpu.plan import planner
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe import loader
from cloudgpu.recipe.loader import resolve

QUICKSTART = loader.load(Path(__file__).parents[3] / "recipes" / "quickstart" / "recipe.yaml")
LINE = (
    "quickstart on running cluster s1 (2 x p3dn.24xlarge), expires 2026-11-21 04:20 UTC, in 50 min: 62.424 USD/h, "
    "at most 52.02 USD until then  [simulated]"
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    recipe = resolve(QUICKSTART, sets={}, rehearsal=True)
    source = PlannerInput(
        recipe,
        target="rehearsal",
        catalog=load(),
        quotes=Quotes(),
        default_region="us-east-1",
        today=date(2026, 11, 21),
    )
    return planner.build_plan(source)


def test_plan_for_running_cluster_is_one_line(plan, cluster, now):
    assert running_plan_lines(plan, cluster, now) == [LINE]
    later = replace(cluster, lifecycle=replace(cluster.lifecycle, expires_at=now + timedelta(hours=10)))
    assert "in 10 h: 62.424 USD/h, at most 624.24 USD until then" in running_plan_lines(plan, later, now)[0]
    assert all(len(line) <= 80 for line in running_plan_lines(plan, cluster, now, 80))


def shown(plan: Plan, name: str, now, cluster) -> list[str]:
    lines: list[str] = []
    context = SimpleNamespace(
        records=SimpleNamespace(cluster={cluster.name: cluster}.get),
        clock=SimpleNamespace(now=lambda: now),
        screen=SimpleNamespace(lines=lines.extend, width=None, compact=False),
    )
    show_plan(SimpleNamespace(plan=plan), name, context, SimpleNamespace(plan_command="cloudgpu plan quickstart"))
    return lines


def test_prompt_shows_offers_only_if_nodes_will_be_launched(plan, cluster, now):
    assert shown(plan, "s1", now, cluster) == [LINE]
    other_target = replace(cluster, identity=replace(cluster.identity, target="aws"))
    partial = replace(cluster, lifecycle=replace(cluster.lifecycle, state="making"))
    expired = replace(cluster, lifecycle=replace(cluster.lifecycle, expires_at=now))
    larger = replace(cluster, placement=replace(cluster.placement, nodes=3))
    for unused in (other_target, partial, expired, larger):
        assert "  try  type           zone " in "\n".join(shown(plan, "s1", now, unused))
    assert "cluster other:" in "\n".join(shown(plan, "other", now, cluster))
