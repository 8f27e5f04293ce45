from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudgpu.catalog import load
from cloudgpu.cli.render.plan import plan_summary
from cloudgpu.plan import planner, planner_input
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe.schema import Recipe, digest

CATALOG = load()
TODAY = date(2026, 8, 1)
BESIDE_USD = Decimal("0.044444445") + Decimal("0.010")
"""What goes with two nodes an hour: disks of 200 GiB at 0.08 USD a month of 720 hours, an address each."""
WORST_USD = Decimal("499.83")
"""8 h x (2 x 31.212 + what goes with the nodes), rounded up."""


def recipe(**sections):
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": {"instance_type": "p3dn.24xlarge", "nodes": 2},
            "launch": {"with": "torchrun", "command": "train.py"},
            "outputs": ["outputs/"],
            "budget": {"max_usd": 10_000},
            **sections,
        }
    )


def make(one, *, target="aws", quotes=None, today=TODAY, region="us-east-1") -> Plan:
    return planner.build_plan(
        PlannerInput(one, target=target, catalog=CATALOG, quotes=quotes or Quotes(), default_region=region, today=today)
    )


def on(**resources):
    return recipe(resources={"nodes": 2, **resources})


def said(plan):
    """Return the findings except those that every offline plan and every plan with p3dn.24xlarge has."""
    return [finding for finding in plan.findings if finding.check not in ("offline", "quota", "new-account")]


def found(plan):
    return {(finding.check, finding.severity) for finding in said(plan)}


def places(plan):
    return [(one.instance_type, one.zone) for one in plan.candidates]


def test_basic_plan_has_expected_candidates_and_costs():
    plan = make(recipe())
    assert places(plan) == [("p3dn.24xlarge", "us-east-1c"), ("p3dn.24xlarge", "us-east-1d")]
    assert said(plan) == []
    assert (plan.nodes, plan.ranks_per_node, plan.expiry_s) == (2, 8, 8 * 3600)
    assert plan.hourly_usd == Decimal("62.424") + BESIDE_USD
    assert plan.worst_case_usd == WORST_USD
    assert not plan.priced_live
    assert plan.recipe_digest == digest(plan.recipe)
    first = plan.candidates[0]
    assert (first.efa_interfaces, first.gpu, first.gpus_per_node, first.market) == (1, "V100", 8, "on-demand")
    assert "canonical/ubuntu" in first.image


def test_plan_resolves_current_machine_image_for_each_gpu():
    wanted = planner_input.images_to_resolve(on(any_of=["T4:4", "V100:8"]), CATALOG, "us-east-1")
    assert [(name.split("/")[3], region) for name, region in wanted] == [
        ("canonical", "us-east-1"),
        ("deeplearning", "us-east-1"),
    ]
    images = {key: f"ami-{number}" for number, key in enumerate(wanted)}
    plan = make(on(any_of=["T4:4", "V100:8"]), quotes=Quotes(images=images))
    named = {one.gpu: (one.image, one.image_parameter) for one in plan.candidates}
    assert named == {"V100": ("ami-0", wanted[0][0]), "T4": ("ami-1", wanted[1][0])}


def test_custom_machine_image_is_not_looked_up():
    own = recipe(resources={"instance_type": "p3dn.24xlarge", "image": "ami-0123456789abcdef0"})
    assert planner_input.images_to_resolve(own, CATALOG, "us-east-1") == ()
    (first, *_) = make(own).candidates
    assert (first.image, first.image_parameter) == ("ami-0123456789abcdef0", "")


def test_candidates_are_ordered_by_spec_then_region_then_zone():
    plan = make(on(any_of=["T4:4", "V100:8"], regions=["us-west-2", "us-east-1"]), quotes=_quoted("us-west-2"))
    assert [(one.instance_type, one.region) for one in plan.candidates] == sorted(
        [(one.instance_type, one.region) for one in plan.candidates],
        key=lambda pair: (["g4dn.12xlarge", "p3dn.24xlarge"].index(pair[0]), ["us-west-2", "us-east-1"].index(pair[1])),
    )
    assert len({one.instance_type for one in plan.candidates}) == 2
    assert ("ranks", "warning") in found(plan)


def _quoted(region):
    kind = CATALOG.types["g4dn.12xlarge"]
    return Quotes(prices={(kind.name, zone, "on-demand"): Decimal("4.2") for zone in kind.zones[region]})


def test_zones_imply_their_region_and_keep_recipe_order():
    plan = make(on(instance_type="p3dn.24xlarge", zones=["us-west-2c", "us-west-2b"]))
    assert places(plan) == [("p3dn.24xlarge", "us-west-2c"), ("p3dn.24xlarge", "us-west-2b")]


def test_live_zone_data_overrides_the_catalog():
    quotes = Quotes(zones={("p3dn.24xlarge", "us-east-1"): ("us-east-1a", "us-east-1-bos-1a")}, live=True)
    assert places(make(recipe(), quotes=quotes)) == [("p3dn.24xlarge", "us-east-1a")]
    gone = Quotes(zones={("p3dn.24xlarge", "us-east-1"): ()}, live=True)
    assert found(make(recipe(), quotes=gone)) == {("offered", "error")}


def test_region_missing_from_catalog_is_a_plan_error():
    quotes = Quotes(zones={("p3dn.24xlarge", "mars-1"): ("mars-1a",)}, live=True)
    assert found(make(on(gpu="V100:8", regions=["mars-1"]), quotes=quotes)) == {("region", "error")}


def test_plan_with_current_prices_is_marked_priced_live():
    prices = {("p3dn.24xlarge", zone, "on-demand"): Decimal(30) for zone in ("us-east-1c", "us-east-1d")}
    plan = make(recipe(), quotes=Quotes(prices=prices, live=True), today=date(2027, 1, 1))
    assert plan.priced_live
    assert {one.priced_on for one in plan.candidates} == {date(2027, 1, 1)}
    assert plan.hourly_usd == 60 + BESIDE_USD
    assert ("price-age", "warning") not in found(plan)


@pytest.mark.parametrize(
    ("resources", "check", "message", "fix"),
    [
        (
            {"instance_type": "p3.16xlarge"},
            "retired",
            "AWS retired p3.16xlarge on 2025-12-20, and it can no longer be launched; its successor is p3dn.24xlarge",
            "--set resources.instance_type=p3dn.24xlarge",
        ),
        (
            {"gpu": "V100:4"},
            "retired",
            "AWS retired p3.8xlarge on 2025-12-20, and it can no longer be launched; its successor is g5.12xlarge",
            "--set resources.instance_type=g5.12xlarge",
        ),
        (
            {"instance_type": "p3dn.24xlage"},
            "instance-type",
            'unknown instance type p3dn.24xlage; did you mean "p3dn.24xlarge"?',
            "--set resources.instance_type=p3dn.24xlarge",
        ),
        ({"gpu": "V10:8"}, "gpu", 'unknown GPU V10; did you mean "V100"?', "--set resources.gpu=V100:8"),
        ({"gpu": "T4:3"}, "gpu", "no instance type has 3 T4; available: T4:1, T4:4, T4:8", "--set resources.gpu=T4:8"),
        (
            {"gpu": "V100:8", "regions": ["us-eastt-1"]},
            "region",
            'unknown region us-eastt-1; did you mean "us-east-1"?',
            "--set resources.regions=us-east-1",
        ),
        (
            {"gpu": "V100:8", "regions": ["eu-central-1"]},
            "offered",
            "p3dn.24xlarge is not offered in eu-central-1",
            "--set resources.regions=ap-northeast-1,eu-west-1,us-east-1,us-west-2",
        ),
        (
            {"gpu": "V100:8", "zones": ["us-east-1a"]},
            "offered",
            "p3dn.24xlarge is not offered in us-east-1a; in us-east-1 it is offered in us-east-1c, us-east-1d",
            "--set resources.zones=us-east-1c,us-east-1d",
        ),
        (
            {"instance_type": "g5.xlarge", "network": "efa"},
            "efa",
            "g5.xlarge has no EFA; g5.8xlarge has it",
            "--set resources.network=auto",
        ),
        (
            {"instance_type": "g7.2xlarge", "regions": ["eu-north-1"]},
            "price",
            "no price is known for g7.2xlarge in eu-north-1",
            "cloudgpu catalog refresh --on aws --region eu-north-1",
        ),
    ],
)
def test_unavailable_request_is_an_error_with_a_fix(resources, check, message, fix):
    plan = make(on(**resources))
    assert plan.candidates == ()
    assert [(one.check, one.message, one.fix) for one in plan.errors] == [(check, message, fix)]


def test_unavailable_option_is_only_a_warning_if_another_is_available():
    plan = make(on(any_of=["p3.16xlarge", "g5.xlarge", "V100:8"], network="efa"))
    assert {one.instance_type for one in plan.candidates} == {"p3dn.24xlarge"}
    assert found(plan) == {("retired", "warning"), ("efa", "warning")}


def test_typo_is_an_error_even_if_another_option_is_available():
    assert found(make(on(any_of=["V100:8", "p3nd.24xlarge"]))) == {("instance-type", "error")}
    assert found(make(on(gpu="V100:8", regions=["us-east-1", "us-best-1"]))) == {("region", "error")}


def test_unsatisfiable_recipe_reports_every_reason_grouped_by_rule():
    specs = ["p3.16xlarge", "g5.xlarge", "p3.8xlarge", "g4dn.xlarge"]
    plan = make(on(any_of=specs, network="efa"))
    told = [(one.check, one.message.split()[0 if one.check == "efa" else 2]) for one in plan.errors]
    assert [pair for pair in told if pair[0] in ("retired", "efa")] == [
        ("retired", "p3.16xlarge"),
        ("retired", "p3.8xlarge"),
        ("efa", "g5.xlarge"),
        ("efa", "g4dn.xlarge"),
    ]


def test_gpu_request_ignores_retired_types_silently():
    plan = make(on(gpu="V100:8"))
    assert {one.instance_type for one in plan.candidates} == {"p3dn.24xlarge"}
    assert said(plan) == []


@pytest.mark.parametrize(
    ("kind", "network", "nodes", "interfaces"),
    [
        ("p3dn.24xlarge", "auto", 2, 1),
        ("p3dn.24xlarge", "tcp", 2, 0),
        ("p3dn.24xlarge", "efa", 1, 1),
        ("p3dn.24xlarge", "auto", 1, 0),
        ("p4d.24xlarge", "auto", 1, 0),
        ("p4d.24xlarge", "tcp", 2, 0),
        ("p4d.24xlarge", "auto", 2, 4),
        ("g5.xlarge", "auto", 2, 0),
    ],
)
def test_efa_interfaces_match_network_setting_and_node_count(kind, network, nodes, interfaces):
    plan = make(on(instance_type=kind, network=network, nodes=nodes))
    assert {one.efa_interfaces for one in plan.candidates} == {interfaces}


def test_worst_case_above_budget_is_rejected_with_a_fitting_expiry():
    plan = make(recipe(budget={"max_usd": 100, "expiry": "8h"}))
    (error,) = plan.errors
    assert error.check == "budget"
    assert error.message == (
        "the worst case is 499.83 USD (499.40 for 2 nodes p3dn.24xlarge, 0.36 for 2 disks of 200 GiB (gp3), "
        "0.08 for 2 public IPv4 addresses), above budget.max_usd 100 USD"
    )
    assert error.fix == "--set budget.max_usd=499.83, or --set budget.expiry=1h36m"
    assert make(recipe(budget={"max_usd": 100, "expiry": "1h36m"})).errors == ()
    assert found(make(recipe(budget={}))) == {("budget", "note")}


@pytest.mark.parametrize(("cap", "refused"), [("499.83", False), ("499.82", True), ("499.84", False)])
def test_budget_is_enforced_to_the_cent(cap, refused):
    assert bool(make(recipe(budget={"max_usd": cap})).errors) == refused


def test_budget_too_small_for_any_useful_expiry_suggests_none():
    (error,) = make(recipe(budget={"max_usd": 5})).errors
    assert error.fix == "--set budget.max_usd=499.83"


def test_spot_plan_uses_highest_recorded_price_and_requests_checkpoint():
    plan = make(on(instance_type="p3dn.24xlarge", market="spot"))
    assert {one.node_hourly_usd for one in plan.candidates} == {Decimal("8.29")}
    assert [one.check for one in said(plan)] == ["spot", "spot", "placement"]
    kept = recipe(resources={"gpu": "V100:8", "market": "spot"}, checkpoint={"path": "c"})
    assert [one.check for one in said(make(kept))] == ["spot", "checkpoint-kept"]
    unknown = make(on(instance_type="g5.xlarge", market="spot"))
    assert {one.node_hourly_usd for one in unknown.candidates} == {Decimal("1.006")}


def test_outdated_prices_warn_on_aws_and_note_in_rehearsal():
    for target, severity in (("aws", "warning"), ("rehearsal", "note")):
        assert found(make(recipe(), target=target, today=date(2026, 8, 20))) == {("price-age", severity)}
    assert found(make(recipe(), today=date(2026, 8, 19))) == set()


def test_rehearsal_warns_that_containers_are_not_run():
    boxed = recipe(environment={"container": {"image": "nvcr.io/nvidia/pytorch:24.12-py3"}})
    assert found(make(boxed)) == {("efa-software", "note")}
    (warning,) = [one for one in make(boxed, target="rehearsal").findings if one.check == "container"]
    assert (warning.severity, warning.message) == (
        "warning",
        "the command is not run, because rehearsal nodes cannot run containers: nvcr.io/nvidia/pytorch:24.12-py3",
    )


@pytest.mark.parametrize(
    ("kind", "image", "fix"),
    [
        ("p3dn.24xlarge", "nvcr.io/nvidia/pytorch:25.01-py3", "nvcr.io/nvidia/pytorch:24.12-py3"),
        ("g5.xlarge", "nvcr.io/nvidia/mxnet:18.08-py3", "nvcr.io/nvidia/mxnet:20.10-py3"),
        ("p3dn.24xlarge", "nvcr.io/nvidia/pytorch:24.12-py3", None),
        ("g5.xlarge", "nvcr.io/nvidia/pytorch:25.01-py3", None),
        ("p3dn.24xlarge", "ubuntu:22.04", None),
    ],
)
def test_image_incompatible_with_the_gpu_is_rejected(kind, image, fix):
    boxed = recipe(resources={"instance_type": kind}, environment={"container": {"image": image}})
    fixes = [one.fix for one in make(boxed, target="rehearsal").errors]
    assert fixes == ([f"--set environment.container.image={fix}"] if fix else [])


@pytest.mark.parametrize(
    ("requirement", "refused"),
    [
        ("torch", True),
        ("torch>=2.6", True),
        ("torch==2.11", True),
        ("torch>=2.15", True),
        ("Torch>=2.6,<3", True),
        ("torch>=2.6,<2.11", False),
        ("torch==2.10.0", False),
        ("torch==2.10.0+cu128", False),
        ("torch~=2.10.0", False),
        ("torch~=2.10", True),
        ("torch<=2.10.1", False),
        ("torchvision", False),
        ("torch-geometric", False),
        ("numpy", False),
    ],
)
def test_torch_wheels_without_code_for_the_gpu_are_rejected(requirement, refused):
    required = {"environment": {"python": {"requirements": [requirement]}}}
    assert [one.check for one in make(recipe(**required)).errors] == (["torch"] if refused else [])
    assert make(recipe(resources={"gpu": "T4:1"}, **required)).errors == ()


def test_mounted_dataset_passes_all_checks():
    mounted = recipe(data=[{"name": "a", "from": "s3://bucket/a", "to": "/a", "mode": "mount"}])
    assert make(mounted).errors == ()


def test_too_many_ranks_fail_on_aws_and_warn_in_rehearsal():
    many = recipe(launch={"with": "torchrun", "command": "x", "ranks_per_node": 9})
    assert found(make(many)) == {("ranks", "error")}
    assert found(make(many, target="rehearsal")) == {("ranks", "warning")}
    assert found(make(recipe(), target="rehearsal")) == set()


def test_unimplemented_settings_are_reported():
    kept = recipe(checkpoint={"path": "c", "to": "s3://bucket/x"}, budget={"max_usd": 10_000, "idle": "20m"})
    assert found(make(kept)) == {("checkpoint", "note"), ("idle", "warning")}


def test_secrets_are_listed_by_name():
    (note,) = said(make(recipe(environment={"secrets": ["TOKEN", "KEY"]})))
    shown = "sent to the nodes from your environment, and never stored: TOKEN, KEY"
    assert (note.severity, note.message) == ("note", shown)


def test_prompt_names_the_variables_that_a_recipe_takes_from_the_environment():
    """A stranger's recipe may name any variable, including AWS keys."""
    plan = make(recipe(environment={"secrets": ["TOKEN", "AWS_SECRET_ACCESS_KEY"]}))
    lines = plan_summary(plan, "", "cloudgpu plan tiny")
    named = "note: sent to the nodes from your environment, and never stored: TOKEN, AWS_SECRET_ACCESS_KEY [secrets]"
    assert named in lines
    other = len([finding for finding in plan.findings if finding.severity != "warning"]) - 1
    assert lines[-1].startswith(f"{other} note")


def test_errors_are_listed_before_warnings_and_notes():
    plan = make(recipe(budget={"max_usd": 1, "idle": "20m"}, environment={"secrets": ["KEY"]}))
    assert [one.severity for one in said(plan)] == ["error", "warning", "note"]


def test_offers_are_queried_only_for_valid_types_and_regions():
    wanted = on(any_of=["V100:8", "p3.16xlarge", "nope.large"], regions=["us-east-1", "us-nowhere-1"])
    assert planner_input.offers_to_query(wanted, CATALOG, "us-west-2") == (("p3dn.24xlarge", "us-east-1"),)
    assert planner_input.offers_to_query(recipe(), CATALOG, "us-west-2") == (("p3dn.24xlarge", "us-west-2"),)


OPTIONS = [*CATALOG.types, "V100:8", "V100:4", "T4:1", "A10G:8", "A100:8", "H900:8", "x.large", "V100", "T4:²"]
PLACES = ["us-east-1", "us-west-2", "eu-west-1", "mars-1"]
ZONES = ["us-east-1a", "us-east-1c", "us-west-2b", "mars-1a", "x", ""]


@st.composite
def recipes(draw):
    some = st.lists
    specs = draw(some(st.sampled_from(OPTIONS), min_size=1, max_size=4))
    resources = {
        "any_of": specs,
        "nodes": draw(st.integers(1, 1000)),
        "market": draw(st.sampled_from(["on-demand", "spot"])),
        "prefer": draw(st.sampled_from(["order", "price", "speed", "region", "spot"])),
        "regions": draw(some(st.sampled_from(PLACES), max_size=3)),
        "zones": draw(some(st.sampled_from(ZONES), max_size=2)),
        "network": draw(st.sampled_from(["efa", "tcp", "auto"])),
    }
    budget = {"expiry": f"{draw(st.integers(1, 10_000))}m"}
    return recipe(resources=resources, budget=budget)


@st.composite
def quoted(draw):
    names = st.tuples(st.sampled_from([*CATALOG.types]), st.sampled_from(PLACES))
    zones = st.lists(st.sampled_from(ZONES[:4]), max_size=3).map(tuple)
    return Quotes(zones=draw(st.dictionaries(names, zones, max_size=6)), live=draw(st.booleans()))


@settings(deadline=None)  # a busy machine is no bug
@given(recipes(), quoted(), st.sampled_from(["aws", "rehearsal"]))
def test_plan_always_stays_within_the_recipe_constraints(one, quotes, target):
    plan = make(one, target=target, quotes=quotes)
    resources = one.resources
    for candidate in plan.candidates:
        assert not CATALOG.types[candidate.instance_type].retired
        assert candidate.region in (resources.regions or [zone[:-1] for zone in resources.zones] or ["us-east-1"])
        assert not resources.zones or candidate.zone in resources.zones
        assert candidate.zone[:-1] == candidate.region
        assert candidate.market in {resources.market, *(["spot"] if resources.prefer == "spot" else [])}
        assert candidate.efa_interfaces == 0 or resources.network != "tcp"
    assert len({candidate.key for candidate in plan.candidates}) == len(plan.candidates)
    assert plan.candidates or plan.errors
    assert make(one, target=target, quotes=quotes) == plan


@settings(deadline=None)  # a busy machine is no bug
@given(st.integers(1, 50), st.integers(1, 5000))
def test_suggested_expiry_always_fits_the_budget(nodes, cap):
    plan = make(recipe(resources={"gpu": "V100:8", "nodes": nodes}, budget={"max_usd": cap}))
    for error in plan.errors:
        _, offered, expiry = error.fix.partition("--set budget.expiry=")
        if offered:
            cured = recipe(resources={"gpu": "V100:8", "nodes": nodes}, budget={"max_usd": cap, "expiry": expiry})
            assert make(cured).errors == ()


def test_candidates_follow_the_order_of_requested_regions():
    forward = make(on(gpu="V100:8", regions=["us-east-1", "us-west-2"])).candidates
    backward = make(on(gpu="V100:8", regions=["us-west-2", "us-east-1"])).candidates
    assert forward == (*backward[2:], *backward[:2])


def test_default_region_is_used_only_if_recipe_has_no_regions():
    inputs = PlannerInput(recipe(), "aws", CATALOG, Quotes(), "eu-west-1", TODAY)
    assert inputs.regions == ("eu-west-1",)
    assert replace(inputs, recipe=on(gpu="V100:8", regions=["us-west-2"])).regions == ("us-west-2",)


def test_plan_json_stores_money_as_strings():
    stored = make(recipe(), target="rehearsal").as_json()
    assert (stored["worst_case_usd"], stored["simulated"]) == ("499.83", True)
    assert stored["candidates"][0]["node_hourly_usd"] == "31.212"
