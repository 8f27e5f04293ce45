"""Properties of all findings: fixes work as typed, and findings depend only on the plan inputs."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudgpu.catalog.prices_and_quotas import quota_of
from cloudgpu.plan.capacity import VcpuHeadroom
from cloudgpu.plan.named_resources import DatasetSeen, Lookups
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner import SEVERITIES
from cloudgpu.recipe.schema import Recipe, to_plain_values
from cloudgpu.recipe.set_option import assign
from tests.unit.plan.checks.table import TABLE
from tests.unit.plan.checks.worlds import CATALOG, P_ON_DEMAND, PlanInputs

SET = re.compile(r"--set ([a-z_.]+)=([^\s,]*(?:,[^\s,]+)*)")
FIXES = [
    pytest.param(row.name, one.world, severity, fix, id=f"{row.name}-{n}")
    for row in TABLE
    for n, one in enumerate(row.fails)
    for severity, _, fix in one.said
    if "--set " in fix
]


def typed(world: PlanInputs, name: str, text: str) -> PlanInputs:
    """Return the inputs with a single `--set` applied."""
    values = to_plain_values(world.plan().recipe)
    # The rehearsal stanza is laid over the launch before a recipe is planned.
    assign(values, name.replace("rehearsal.", "launch."), text)
    return replace(world, recipe=to_plain_values(Recipe.model_validate(values)))


@pytest.mark.parametrize(("name", "world", "severity", "fix"), FIXES)
def test_every_set_option_in_a_fix_reduces_the_findings(name, world, severity, fix):
    sets = SET.findall(fix)
    assert len(sets) == fix.count("--set ")
    before = [one for one in world.found(name) if one.severity == severity]
    for field, value in sets:
        after = [one for one in typed(world, field, value).found(name) if one.severity == severity]
        assert len(after) < len(before), f"--set {field}={value} changes nothing: {after}"


KINDS = ["p3dn.24xlarge", "p3.16xlarge", "p4d.24xlarge", "p5.48xlarge", "g5.xlarge", "g4dn.12xlarge", "g6e.48xlarge"]
REGIONS = ["us-east-1", "us-west-2", "eu-west-1"]


@st.composite
def worlds(draw):
    resources = {
        "any_of": draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True)),
        "nodes": draw(st.integers(1, 8)),
        "market": draw(st.sampled_from(["on-demand", "spot"])),
        "regions": draw(st.lists(st.sampled_from(REGIONS), max_size=2, unique=True)),
        "gpu_memory": draw(st.sampled_from([None, "16GiB", "32GiB", "100GiB"])),
        "prefer": draw(st.sampled_from(["order", "price", "spot"])),
    }
    vcpus = st.integers(0, 2000)
    headroom = {
        (region, code): VcpuHeadroom(draw(vcpus), draw(st.none() | vcpus))
        for region in REGIONS
        for code in ("L-417A185B", "L-DB2E81BA", "L-7212CCBC", "L-C4BD4855", "L-3819A6DF")
        if draw(st.booleans())
    }
    lookups = Lookups(
        datasets={
            "a": DatasetSeen("there", size_bytes=draw(st.integers(0, 2**42)), region=draw(st.sampled_from(REGIONS)))
        },
        workdir_bytes=draw(st.none() | st.integers(0, 2**40)),
        enabled_regions=draw(st.none() | st.frozensets(st.sampled_from(REGIONS))),
    )
    return PlanInputs({"resources": resources}, Quotes(live=True, quotas=headroom, lookups=lookups))


@settings(deadline=None, max_examples=60)  # a busy machine is no bug
@given(worlds())
def test_remaining_candidates_violate_no_exclusion_rule(world):
    plan = world.plan()
    lookups, resources = world.quotes.lookups, plan.recipe.resources
    for one in plan.candidates:
        kind = CATALOG.types[one.instance_type]
        assert not kind.retired
        assert one.market in kind.usage_classes
        assert resources.gpu_memory is None or kind.gpu_memory_gib >= resources.gpu_memory
        assert lookups.enabled_regions is None or one.region in lookups.enabled_regions
        headroom = [
            world.quotes.quotas.get((one.region, quota_of(kind.name, market).code)) for market in ("on-demand", "spot")
        ]
        allowed = [room is None or room.limit_vcpus >= plan.nodes * kind.vcpus for room in headroom]
        assert any(allowed)
        assert resources.prefer == "spot" or allowed[0 if one.market == "on-demand" else 1]


@settings(deadline=None, max_examples=40)  # a busy machine is no bug
@given(worlds())
def test_findings_are_deterministic_and_sorted_by_severity(world):
    findings = world.plan().findings
    assert world.plan().findings == findings
    assert len(set(findings)) == len(findings)
    order = [SEVERITIES.index(finding.severity) for finding in findings]
    assert order == sorted(order)
    assert all(finding.message and finding.check for finding in findings)


@pytest.mark.parametrize("used", [0, 192, 193, None])
def test_unreadable_quota_is_reported_as_unknown(used):
    said = {finding.check: finding.severity for finding in PlanInputs(quotes=Quotes(live=True)).plan().findings}
    assert said["quota"] == "unknown"
    room = {("us-east-1", P_ON_DEMAND): VcpuHeadroom(384, used)}
    told = [one.severity for one in PlanInputs(quotes=Quotes(live=True, quotas=room)).found("quota")]
    assert told == {0: [], 192: [], 193: ["warning"], None: ["unknown"]}[used]


def test_market_with_insufficient_quota_is_skipped_with_a_warning():
    headroom = {("us-east-1", "L-7212CCBC"): VcpuHeadroom(0, 0), ("us-east-1", P_ON_DEMAND): VcpuHeadroom(192, 0)}
    resources = {"instance_type": "p3dn.24xlarge", "nodes": 2, "prefer": "spot"}
    world = PlanInputs({"resources": resources}, Quotes(live=True, quotas=headroom))
    assert {one.market for one in world.plan().candidates} == {"spot", "on-demand"}
    (told,) = world.found("quota")
    assert (told.severity, "0 of 0 vCPUs are in use" in told.message) == ("warning", True)
    none = replace(world, quotes=replace(world.quotes, quotas={key: VcpuHeadroom(0, 0) for key in headroom}))
    assert none.plan().candidates == ()
    assert [one.severity for one in none.found("quota")] == ["error", "error"]
