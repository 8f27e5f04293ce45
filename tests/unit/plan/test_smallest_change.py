"""The search for the smallest recipe change that resolves the errors of a plan."""

import shlex
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudgpu.app.planning.planner import plan_error, read_sets
from cloudgpu.catalog import load
from cloudgpu.cli.render.plan import plan_lines
from cloudgpu.errors import BudgetError, RecipeError
from cloudgpu.plan import planner, suggestions
from cloudgpu.plan.capacity import VcpuHeadroom
from cloudgpu.plan.plan import Finding, Plan, Quotes, SuggestedChange
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.substitutes import offered_elsewhere, substitutes
from cloudgpu.plan.suggestions import edit, edits_in_fixes
from cloudgpu.recipe.loader import LoadedRecipe, resolve
from cloudgpu.recipe.schema import Recipe
from cloudgpu.text import command

CATALOG = load()
TODAY = date(2026, 8, 1)


def recipe(**sections):
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": {"instance_type": "p3dn.24xlarge"},
            "launch": {"with": "torchrun", "command": "train.py"},
            "budget": {"max_usd": 100_000},
            **sections,
        }
    )


def asked(one, *, target="aws", quotes=None, catalog=CATALOG):
    return PlannerInput(one, target, catalog, quotes or Quotes(), "us-east-1", TODAY)


def make(one, **world) -> Plan:
    planner_input = asked(one, **world)
    return suggestions.with_remedies(
        planner.plan_with_findings(planner_input), planner_input, planner.plan_with_findings
    )


def applied(one, command, *, rehearsal=False):
    """Apply command-line options to the recipe."""
    sets = read_sets([word for word in shlex.split(command) if word != "--set"])
    return resolve(LoadedRecipe(one, Path("recipe.yaml"), Path()), sets=sets, rehearsal=rehearsal)


def refused(plan):
    return {finding.check for finding in plan.errors}


def commands(plan):
    return [remedy.command for remedy in plan.remedies]


def test_plan_without_errors_is_returned_unchanged():
    plan = planner.plan_with_findings(asked(recipe()))
    assert suggestions.with_remedies(plan, asked(recipe()), lambda _: pytest.fail("it was planned again")) is plan


def test_single_change_is_suggested_when_sufficient():
    plan = make(recipe(resources={"instance_type": "p3dn.24xlarge", "regions": ["eu-central-1"]}))
    assert commands(plan)[0] in (
        "--set resources.regions=us-east-1",
        "--set resources.regions=us-west-2",
    )
    assert all(command.count("--set") == 1 for command in commands(plan))


def test_two_changes_are_combined_when_a_single_change_is_insufficient():
    plan = make(recipe(resources={"instance_type": "p3.16xlarge", "nodes": 2}, budget={"max_usd": 30}))
    assert refused(plan) == {"retired"}
    first = plan.remedies[0]
    assert first.command == "--set resources.instance_type=p3dn.24xlarge --set budget.expiry=28m"
    assert first.worst_case_usd <= 30
    assert make(applied(plan.recipe, first.command)).errors == ()


def test_suggestion_also_fixes_errors_uncovered_by_a_fix():
    """The region and budget errors appear only after the driver error is fixed."""
    b300 = {"instance_type": "p6-b300.48xlarge", "gpu_memory": "200GiB"}  # nothing else has that much
    plan = make(recipe(resources={**b300, "driver": 470, "regions": ["sa-east-1"]}, budget={"max_usd": 50}))
    assert refused(plan) == {"driver"}
    assert commands(plan)[0].count("--set") == 3
    assert "--set resources.regions=" in commands(plan)[0]
    assert make(applied(plan.recipe, commands(plan)[0])).errors == ()


def test_each_error_and_the_whole_plan_have_a_fix():
    plan = make(
        recipe(
            resources={"instance_type": "p3.16xlarge", "image": "/aws/service/x-oss-nvidia-driver-y"},
            environment={"python": {"requirements": ["torch==2.12.0"]}},
        )
    )
    assert refused(plan) == {"retired", "machine-image", "torch"}
    assert all(finding.remedies for finding in plan.errors)
    assert plan.remedies
    assert all(make(applied(plan.recipe, command)).errors == () for command in commands(plan))


def test_suggested_reduction_is_the_largest_that_fits():
    headroom = Quotes(live=True, quotas={("us-east-1", "L-417A185B"): VcpuHeadroom(960, 0)})
    plan = make(recipe(resources={"instance_type": "p3dn.24xlarge", "nodes": 64}), quotes=headroom)
    assert "--set resources.nodes=10" in commands(plan)
    tight = make(recipe(resources={"instance_type": "p3dn.24xlarge", "nodes": 3}, budget={"max_usd": 100}))
    expiry = next(command for command in commands(tight) if "expiry" in command)
    assert make(applied(tight.recipe, expiry)).errors == ()
    minutes = int(applied(tight.recipe, expiry).budget.expiry) // 60
    assert refused(make(applied(tight.recipe, f"--set budget.expiry={minutes + 1}m"))) == {"budget"}


def test_smallest_change_is_suggested_before_the_cheapest():
    plan = make(recipe(environment={"python": {"requirements": ["torch"]}}))
    kinds = [command.split("=")[0].split(".")[-1].strip("'") for command in commands(plan)]
    assert kinds == ["torch_backend", "requirements", "instance_type"]
    assert commands(plan)[1] == "--set 'environment.python.requirements=torch~=2.10.0'"


def test_unfixable_error_has_no_suggestions_but_keeps_its_fix_text():
    boxed = {"container": {"image": "nvcr.io/nvidia/pytorch:24.12-py3", "flags": ["--name=mine"]}}
    plan = make(recipe(environment=boxed))
    (one,) = plan.errors
    assert (one.remedies, plan.remedies) == ((), ())
    assert one.first_fix == one.fix != ""


def test_number_of_suggestions_is_limited_and_all_are_distinct():
    plan = make(recipe(resources={"instance_type": "p3.16xlarge"}))
    assert 1 < len(plan.remedies) <= suggestions.MAX_REMEDIES
    assert len(set(commands(plan))) == len(plan.remedies)


def test_number_of_trial_plans_is_bounded():
    tried = []

    def counted(planner_input):
        tried.append(planner_input)
        return planner.plan_with_findings(planner_input)

    worst = recipe(
        resources={"instance_type": "p3.16xlarge", "nodes": 1000, "regions": ["us-east-1"], "driver": 470},
        environment={"python": {"requirements": ["torch"]}},
        budget={"max_usd": 1},
    )
    planner_input = asked(worst, quotes=Quotes(live=True, quotas={("us-east-1", "L-417A185B"): VcpuHeadroom(0, 0)}))
    suggestions.with_remedies(planner.plan_with_findings(planner_input), planner_input, counted)
    assert len(tried) < 250


def test_suggested_region_whose_quota_was_not_read_says_so():
    refused = recipe(resources={"instance_type": "p3dn.24xlarge", "nodes": 2, "regions": ["us-east-1"]})
    headroom = {("us-east-1", "L-417A185B"): VcpuHeadroom(0, 0)}
    with_quota = {**headroom, ("us-west-2", "L-417A185B"): VcpuHeadroom(960, 0)}
    for quotas, ending in ((headroom, "in us-west-2, quota unknown"), (with_quota, "in us-west-2")):
        planner_input = asked(refused, quotes=Quotes(live=True, quotas=quotas))
        plan = suggestions.with_remedies(
            planner.plan_with_findings(planner_input), planner_input, planner.plan_with_findings
        )
        (elsewhere,) = [remedy for remedy in plan.remedies if remedy.command == "--set resources.regions=us-west-2"]
        assert elsewhere.gets.endswith(ending)


def test_set_options_are_extracted_from_fix_text():
    found = list(edits_in_fixes(["--set budget.max_usd=5.10, or --set budget.expiry=1h", "ask for more", "--set a.b="]))
    assert [one.sets for one in found] == [(("budget.max_usd", "5.10"),), (("budget.expiry", "1h"),), (("a.b", ""),)]
    quoted = f"{command('--set', 'a.b=it is; 2')}, or {command('--set', 'c.d=3 4')} or more"
    assert [one.sets for one in edits_in_fixes([quoted])] == [(("a.b", "it is; 2"),), (("c.d", "3 4"),)]


def test_invalid_or_redundant_edit_yields_no_recipe():
    one = recipe()
    assert edit("resources.nodes", "0").applied(one) is None
    assert edit("resources.nope", "1").applied(one) is None
    assert edit("resources.nodes", "1").applied(one) is None  # it is so already
    assert edit("resources.market", "capacity-block").applied(one) is None
    assert edit("resources.nodes", "2").applied(one).resources.nodes == 2


def test_substitute_types_are_offered_in_region_and_pass_all_rules():
    planner_input = asked(recipe(resources={"instance_type": "p3.16xlarge"}))
    found = list(substitutes(planner_input))
    by_kinship = {kinship: [kind.name for one, kind in found if one == kinship] for kinship, _ in found}
    assert by_kinship["same GPU"] == ["p3dn.24xlarge"]
    assert by_kinship["same size"][0] == by_kinship["as much memory"][0] == "g4dn.metal"
    assert all("us-east-1" in kind.on_demand_usd and not kind.retired for _, kind in found)
    old = replace(planner_input, recipe=recipe(environment={"container": {"image": "nvcr.io/nvidia/caffe2:18.08-py3"}}))
    assert {kind.gpu for _, kind in substitutes(old)} <= {"V100", "T4"}


def test_same_gpu_count_ranks_before_same_gpu_model():
    four = recipe(resources={"gpu": "V100:4"})
    assert ("other number", CATALOG.types["p3dn.24xlarge"]) in substitutes(asked(four))
    assert commands(make(four))[0] == "--set resources.instance_type=g4dn.12xlarge"


def test_comparable_aws_type_is_suggested_for_non_aws_type():
    plan = make(recipe(resources={"instance_type": "ecs.gn6v-c8g1.2xlarge"}))
    assert refused(plan) == {"instance-type"}
    assert commands(plan)[0] == "--set resources.instance_type=g4dn.xlarge"


def test_other_regions_are_sorted_by_price():
    planner_input = asked(recipe(resources={"instance_type": "p3dn.24xlarge", "regions": ["ap-northeast-1"]}))
    found = offered_elsewhere(planner_input)
    prices = [CATALOG.types["p3dn.24xlarge"].on_demand_usd[region] for region in found]
    assert prices == sorted(prices)
    assert "ap-northeast-1" not in found


def test_rejected_plan_lists_fixes_below_their_error():
    plan = make(recipe(resources={"instance_type": "p3.16xlarge"}))
    shown = plan_lines(plan, "")
    place = next(index for index, line in enumerate(shown) if line.endswith("[retired]"))
    assert shown[place + 1].startswith(
        "    fix: --set resources.instance_type=p3dn.24xlarge  (1 x p3dn.24xlarge (8 x V100"
    )
    assert shown[place + 2].startswith(
        "    or:  --set resources.instance_type=g4dn.metal  (1 x g4dn.metal (8 x T4 16 GiB)"
    )
    assert plan_error(plan).hint == "--set resources.instance_type=p3dn.24xlarge"


def test_fix_for_several_errors_is_shown_once():
    plan = make(recipe(resources={"gpu": "M60:1"}, environment={"python": {"requirements": ["torch"]}}))
    shown = plan_lines(plan, "")
    assert len(plan.errors) > 1
    lines = "\n".join(shown)
    assert lines.count("--set resources.instance_type=g4dn.xlarge  (") == 1
    assert "    fix: --set environment.python.torch_backend=cu126\n" in lines
    assert shown[-1].strip().startswith("or: --set resources.instance_type=")


def test_budget_error_hint_yields_a_plan_without_errors():
    plan = make(recipe(budget={"max_usd": 100}))
    err = plan_error(plan)
    assert isinstance(err, BudgetError)
    assert make(applied(plan.recipe, err.hint)).errors == ()


def test_fix_text_beyond_set_options_is_kept_next_to_suggestions():
    remedy = SuggestedChange("--set a.b=1", "1 x x (1 x T4 16 GiB) in r", Decimal("1.50"))
    text = "--set a.b=1  (1 x x (1 x T4 16 GiB) in r, worst case 1.50 USD)"
    assert Finding("a", "error", "m", "ask for more", (remedy,)).all_fixes == (text, "ask for more")
    assert Finding("a", "error", "m", "--set a.b=2", (remedy,)).all_fixes == (text,)
    assert Finding("a", "error", "m", "--set a.b=2, or --set c.d=3", (remedy,)).all_fixes == (text,)
    assert Finding("a", "error", "m", "--set a.b=2, or ask for more", (remedy,)).all_fixes == (text, "ask for more")
    assert Finding("a", "error", "m", "buy one, or --set a.b=2", (remedy,)).all_fixes == (text, "buy one")
    assert Finding("a", "error", "m", "--set a.b=2, or ask for more").all_fixes == ("--set a.b=2, or ask for more",)
    assert Finding("a", "error", "m", "--set a.b=2").all_fixes == ("--set a.b=2",)
    assert Finding("a", "error", "m", "--set 'a.b=2 3', or ask for more", (remedy,)).all_fixes == (text, "ask for more")
    assert Finding("a", "error", "m", "", (remedy,)).as_json()["remedies"] == [
        {"command": "--set a.b=1", "gets": "1 x x (1 x T4 16 GiB) in r", "worst_case_usd": "1.50"}
    ]


IMAGES = ["nvcr.io/nvidia/pytorch:24.12-py3", "nvcr.io/nvidia/pytorch:25.03-py3", "nvcr.io/nvidia/caffe2:18.08-py3"]
TORCH = ["torch", "torch>=2.11", "torch==2.7.0", "torch<2", "numpy", "torch>=2.15"]
REGIONS = ["us-east-1", "us-west-2", "eu-central-1", "sa-east-1"]


@st.composite
def broken_recipes(draw):
    resources = {
        "instance_type": draw(st.sampled_from(sorted(CATALOG.types))),
        "nodes": draw(st.sampled_from([1, 2, 9, 300])),
        "regions": draw(st.lists(st.sampled_from(REGIONS), max_size=2, unique=True)),
        "network": draw(st.sampled_from(["auto", "efa"])),
        "market": draw(st.sampled_from(["on-demand", "spot"])),
        "image": draw(
            st.sampled_from([None, None, "/aws/service/x/base-oss-nvidia-driver-gpu-y", "ami-0123456789abcdef0"])
        ),
        "driver": draw(st.sampled_from([None, None, 470, 535, 580])),
    }
    software = draw(st.sampled_from([{}, "container", "python"]))
    if software == "container":
        software = {"container": {"image": draw(st.sampled_from(IMAGES))}}
    elif software == "python":
        software = {"python": {"requirements": [draw(st.sampled_from(TORCH)), "einops"]}}
    budget = {"max_usd": draw(st.sampled_from([1, 50, 5000, 10**7])), "expiry": draw(st.sampled_from(["20m", "8h"]))}
    return recipe(resources=resources, environment=software, budget=budget)


@st.composite
def worlds(draw):
    limit = draw(st.sampled_from([None, 0, 96, 1000]))
    codes = ("L-417A185B", "L-DB2E81BA", "L-7212CCBC", "L-3819A6DF")
    quotas = {} if limit is None else {(region, code): VcpuHeadroom(limit, 0) for region in REGIONS for code in codes}
    addresses = {region: draw(st.sampled_from([0, 5])) for region in REGIONS}
    return Quotes(live=draw(st.booleans()), quotas=quotas, free_addresses=addresses)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no bug
@given(broken_recipes(), worlds(), st.sampled_from(["aws", "rehearsal"]))
def test_every_suggestion_fixes_its_error_without_adding_new_errors(one, quotes, target):
    plan = make(one, target=target, quotes=quotes)
    for finding in plan.errors:
        for remedy in finding.remedies:
            cured = planner.plan_with_findings(asked(applied(one, remedy.command), target=target, quotes=quotes))
            assert finding.check not in refused(cured)
            assert refused(cured) < refused(plan)
            assert remedy.worst_case_usd == cured.worst_case_usd
    for remedy in plan.remedies:
        cured = planner.plan_with_findings(asked(applied(one, remedy.command), target=target, quotes=quotes))
        assert cured.errors == ()
        assert cured.candidates


@settings(deadline=None, max_examples=60)
@given(
    broken_recipes(), st.sampled_from(["resources.regions", "resources.nodes", "budget.expiry"]), st.text(max_size=9)
)
def test_edit_with_arbitrary_text_never_crashes(one, field, text):
    changed = edit(field, text).applied(one)
    try:
        assert changed in (None, applied(one, f"--set {shlex.quote(f'{field}={text}')}"))
    except RecipeError:
        assert changed is None
