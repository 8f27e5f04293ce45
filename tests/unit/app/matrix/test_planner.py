"""A matrix plan: one cluster that can run every combination, or all findings that prevent it, before any launch."""

from datetime import UTC, date, datetime, timedelta

import pytest

from cloudgpu.app.matrix.planner import MatrixRequest, matrix_progress, plan_matrix
from cloudgpu.app.runs.train import TrainRequest
from cloudgpu.cli.commands.matrix import plan_lines
from cloudgpu.errors import PlanError, UsageError
from cloudgpu.paths import Home
from cloudgpu.recipe import loader
from cloudgpu.recipe.matrix import combinations, read_axes
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import RunRecord
from tests.cluster_records import cluster_record
from tests.unit.app.plan_on import nowhere, plan_on

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
RECIPE = """
schema: 1
name: pair
resources: {any_of: [V100-32GB:8, A100-40GB:8], nodes: 2, regions: [us-east-1]}
environment: {python: {requirements: ['torch<2.11']}}
params: {batch: 64, kvstore: local}
launch: {with: torchrun, command: 'train.py {batch} {kvstore}', global_batch: '{batch}'}
metrics:
  speed: {pattern: '(?P<value>.)', unit: img/s, better: higher, reference: {value: 100, on: x, source: y}}
work: {metric: speed, amount: 100000}
budget: {expiry: 1h, max_usd: 200}
"""


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair" / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "pair" / "train.py").write_text("")
    queried = []

    def make(*texts):
        loaded = loader.load(tmp_path / "pair" / "recipe.yaml")
        axes = read_axes(texts)

        def query(combination):
            queried.append(combination.label)
            sets = [f"{name}={value}" for name, value in combination.values]
            return plan_on("pair", sets, home=nowhere(tmp_path), today=date(2026, 11, 21), roots=[tmp_path])

        return plan_matrix(loaded, axes, combinations(loaded, axes, {}, rehearsal=False), query)

    make.queried = queried
    return make


def test_cloud_is_queried_once_for_all_params(plan):
    matrix = plan("batch=64,128", "kvstore=a,b")
    assert plan.queried == ["batch=64 kvstore=a"]
    assert [run.plan.recipe.params for run in matrix.runs] == [
        {"batch": batch, "kvstore": kvstore} for batch in (64, 128) for kvstore in ("a", "b")
    ]
    assert len({run.plan.recipe_digest for run in matrix.runs}) == 4
    assert matrix.expected_s == 4 * 1000


def test_environment_axis_queries_the_cloud_per_value(plan):
    plan("environment.env.A=1,2")
    assert len(plan.queried) == 2


def test_tcp_and_efa_runs_share_the_cluster_with_efa(plan):
    matrix = plan("resources.network=tcp,efa")
    assert plan.queried == ["resources.network=efa"]
    assert all(candidate.efa_interfaces for candidate in matrix.lead.plan.candidates)
    assert [run.plan.recipe.resources.network for run in matrix.runs] == ["tcp", "efa"]
    assert {(whose, finding.check) for whose, finding in matrix.further_findings} == {
        ("resources.network=tcp", "fabric")
    }


@pytest.mark.parametrize(
    "text",
    ["resources.nodes=1,2", "resources.any_of=V100:8", "budget.expiry=1h,2h", "name=a,b", "resources.gpu=V100:8"],
)
def test_axis_that_changes_the_cluster_is_rejected_with_commands(plan, text):
    with pytest.raises(UsageError, match="changes the cluster itself") as caught:
        plan(text, "kvstore=a,b")
    name, _, value = text.partition("=")
    first = value.split(",")[0]
    assert f"`cloudgpu train pair --set {name}={first} --matrix kvstore=a,b`" in caught.value.hint
    assert plan.queried == []


def test_plan_errors_of_all_combinations_are_reported_together(plan):
    with pytest.raises(PlanError, match="cannot run with every combination") as caught:
        plan("batch=64,7,5", "kvstore=a,b")
    lines = [line for line in caught.value.findings if "p3dn" in line]
    assert len(lines) == 2
    assert lines[0].startswith("batch=7 kvstore=a; batch=7 kvstore=b: batch: a batch of 7 is too small for 16 ranks")
    assert lines[1].startswith("batch=5 kvstore=a; batch=5 kvstore=b: batch: a batch of 5 is too small for 16 ranks")
    assert all("(fix: --set batch=16)" in line for line in lines)
    assert caught.value.hint == "omit the failing values"


def test_finding_common_to_all_combinations_is_reported_once(plan):
    with pytest.raises(PlanError) as caught:
        plan("kvstore=a,b", "launch.ranks_per_node=9")
    assert {line.partition(": ")[0] for line in caught.value.findings} == {"all 2 combinations"}


def test_candidates_are_types_that_every_combination_supports(plan):
    # PyTorch wheels from 2.11 on have no V100 kernels, so only A100 runs both.
    both = plan("environment.python.requirements=torch<2.11,torch>=2.11")
    assert {candidate.instance_type for candidate in both.lead.plan.candidates} == {"p4d.24xlarge"}


def test_service_recipe_is_rejected_in_a_matrix(plan, tmp_path):
    text = RECIPE.replace("with: torchrun", "with: service, service: {port: 8888}").replace(
        ", global_batch: '{batch}'", ""
    )
    (tmp_path / "pair" / "recipe.yaml").write_text(text)
    with pytest.raises(UsageError, match="a service runs until it is stopped"):
        plan("kvstore=a,b")


def shared(matrix, **more):
    """Return the options that all runs of a matrix share."""
    return TrainRequest(matrix.lead.plan, matrix.lead.path, matrix.lead.base, **more)


def printed_lines(matrix, tmp_path, *, cluster=None, took_s=None):
    """Return the lines printed below the plan, before the confirmation prompt."""
    home = Home(tmp_path / "home")
    records = RecordStore(home)
    if took_s is not None:
        run = RunRecord("r", "c", "pair", "", "", "", "aws", NOW, state="succeeded", ended_at=NOW + took_s * SECOND)
        records.save_run(run)
    request = MatrixRequest(matrix, shared(matrix))
    progress = matrix_progress(request, lambda _: None, records, NOW)
    return plan_lines(matrix, progress, cluster, NOW)[2:]


def test_matrix_plan_shows_total_cost_and_time_per_run(plan, tmp_path):
    assert printed_lines(plan("batch=64,128", "kvstore=a,b"), tmp_path) == [
        "  batch=64 kvstore=a",
        "  batch=64 kvstore=b",
        "  batch=128 kvstore=a",
        "  batch=128 kvstore=b",
        "the whole matrix costs at most 62.48 USD: one cluster, which expires after 1h",
        "4 runs in 1 h: 15 min 00 s for each run, including the launch of the nodes",
        "warning: at the reference rates 4 runs would take 1 h 06 min, but the cluster expires earlier [matrix]",
        "    fix: --set budget.expiry=1h21m; or run the same command again after the expiry",
    ]


def test_recent_runs_estimate_duration_without_a_reference(plan, tmp_path):
    (tmp_path / "pair" / "recipe.yaml").write_text(RECIPE.replace("work: {metric: speed, amount: 100000}", ""))
    matrix = plan("kvstore=a,b,c")
    assert not [line for line in printed_lines(matrix, tmp_path) if "warning" in line]
    assert not [line for line in printed_lines(matrix, tmp_path, took_s=1000) if "warning" in line]
    *_, warning, fix = printed_lines(matrix, tmp_path, took_s=1500)
    assert warning.startswith("warning: at the pace of this recipe's recent runs, 3 runs would take 1 h 15 min")
    assert "--set budget.expiry=1h31m" in fix


def test_running_cluster_limits_the_time_of_the_matrix(plan, tmp_path):
    cluster = cluster_record(recipe="pair", created_at=NOW, expires_at=NOW + 1800 * SECOND, state="up")
    *_, expiry, each, warning, fix = printed_lines(plan("kvstore=a,b"), tmp_path, cluster=cluster)
    assert expiry == "cluster lab expires at 2026-11-21 12:30 UTC, in 30 min"
    assert each.startswith("2 runs in 30 min: 15 min 00 s for each")
    assert "2 runs would take 33 min 20 s" in warning
    assert "cloudgpu extend lab --by 41m" in fix


def test_matrix_name_depends_only_on_recipe_axes_and_sets(plan, tmp_path):
    def name(*texts, sets=(), **more):
        matrix = plan(*texts)
        request = MatrixRequest(matrix, shared(matrix, **more), sets)
        records = RecordStore(Home(tmp_path / "home"))
        return matrix_progress(request, lambda _: None, records, NOW).record.name

    same = name("kvstore=a,b")
    assert name("kvstore=a,b") == same
    assert name("kvstore=a,b", cluster="x", keep=True) == same
    assert len({same, name("kvstore=a,c"), name("batch=64,128"), name("kvstore=a,b", sets=("batch=128",))}) == 4
    assert same.startswith("pair-")
