"""`recipe new` writes a valid recipe for every available instance type, with a script that runs."""

import errno
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from cloudgpu.app.planning.recipe_scaffold import ScaffoldRequest, make_scaffold, write_scaffold
from cloudgpu.app.runs.train import check_feasible
from cloudgpu.catalog import load
from cloudgpu.catalog.gpu_spec import types_for_spec
from cloudgpu.catalog.ranking import SearchCriteria, rank_offers
from cloudgpu.cli.commands.recipe import scaffold_lines
from cloudgpu.cli.main import main
from cloudgpu.errors import StateError, UsageError
from cloudgpu.plan import planner
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe import loader
from cloudgpu.recipe.loader import resolve
from tests.screens import screens

CATALOG = load()
SPECS = sorted(
    {
        offer.spec
        for offer in rank_offers(CATALOG, SearchCriteria(), "usd-per-hour", home_region="us-east-1").offers
        if offer.hourly_usd is not None
    }
)


def scaffold(catalog, gpu: str, *, home: str = "us-east-1", **spec):
    fields = {"name": "my-run", "nodes": 1, "region": "", **spec}
    return make_scaffold(ScaffoldRequest(gpu=gpu, **fields), catalog, home)


def test_scaffolded_recipe_matches_golden_file(catalog, golden):
    assert scaffold(catalog, "V100-32GB:8", nodes=2).files["recipe.yaml"] == golden("recipe.yaml")


def test_scaffold_screens_match_golden_file(catalog, golden):
    made = scaffold(catalog, "V100-32GB:8", nodes=2)
    shown = screens(lambda width: scaffold_lines(made, Path("projects/vision/recipes/my-run"), width))
    assert shown == golden("screens_recipe_new.txt")


def test_scaffold_output_matches_golden_file(catalog, golden):
    lines = scaffold_lines(scaffold(catalog, "V100-32GB:8", nodes=2), Path("recipes/my-run"))
    assert "\n".join(lines) + "\n" == golden("begun.txt")


@pytest.mark.parametrize("spec", [*SPECS, "p3dn.24xlarge", "g6e.12xlarge"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_scaffold_for_every_offered_gpu_spec_plans_without_errors(spec, nodes, tmp_path):
    made = scaffold(CATALOG, spec, nodes=nodes)
    write_scaffold(made, tmp_path / "my-run")
    loaded = loader.load(tmp_path / "my-run" / "recipe.yaml")
    for target in ("rehearsal", "aws"):
        recipe = resolve(loaded, sets={}, rehearsal=target == "rehearsal")
        assert recipe.resources.regions == (made.offer.region,)
        plan = planner.build_plan(
            PlannerInput(
                recipe,
                target=target,
                catalog=CATALOG,
                quotes=Quotes(),
                default_region="us-east-1",
                today=date(2026, 8, 1),
            )
        )
        assert [finding for finding in plan.findings if finding.severity == "error"] == []
        assert plan.candidates[0].instance_type == made.offer.kind.name
        meant = {kind.name for kind in types_for_spec(spec, CATALOG)}
        assert {candidate.instance_type for candidate in plan.candidates} <= meant


def test_instance_types_above_twice_the_price_are_omitted(catalog):
    expensive = replace(catalog.types["g4.xlarge"], name="g4.4xlarge", on_demand_usd={"us-east-1": Decimal("1.10")})
    near = replace(catalog.types["g4.xlarge"], name="g4.2xlarge", on_demand_usd={"us-east-1": Decimal("0.9")})

    def hardware(*more):
        extended = replace(catalog, types={**catalog.types, **{kind.name: kind for kind in more}})
        text = scaffold(extended, "T4:1").files["recipe.yaml"]
        return text.partition("resources:\n")[2].partition("  nodes:")[0]

    assert hardware().startswith("  gpu: T4:1  ")
    assert hardware(near).startswith("  gpu: T4:1  ")
    about = "  # T4:1; these cost more than twice as much and are omitted: g4.4xlarge\n"
    assert hardware(near, expensive) == f"{about}  any_of: [g4.xlarge, g4.2xlarge]\n"
    assert hardware(expensive) == f"{about}  instance_type: g4.xlarge\n"
    made = scaffold(replace(catalog, types={**catalog.types, near.name: near}), "T4:1", nodes=2)
    assert scaffold_lines(made, Path("x"))[0].endswith("$1.05 (at most $1.80, on g4.2xlarge) an hour")


def test_cheapest_type_depends_on_region_and_market(catalog):
    other = replace(
        catalog.types["g4.xlarge"],
        name="g4.other",
        on_demand_usd={"us-east-1": Decimal("0.6"), "eu-west-1": Decimal("0.5")},
        usage_classes=("on-demand",),
    )
    # The catalog is ordered by the lowest price in any region, which is wrong for us-east-1 here.
    extended = replace(catalog, types={**catalog.types, other.name: other})
    assert scaffold(extended, "T4:1").offer.kind.name == "g4.xlarge"
    assert scaffold(extended, "T4:1", region="eu-west-1").offer.kind.name == "g4.other"
    assert scaffold(extended, "T4:1", region="eu-west-1", market="spot").offer.kind.name == "g4.xlarge"


def test_spot_scaffold_sets_market_and_budgets_on_demand_price(tmp_path):
    made = scaffold(CATALOG, "V100-32GB:8", market="spot")
    write_scaffold(made, tmp_path / "my-run")
    recipe = loader.load(tmp_path / "my-run" / "recipe.yaml").recipe
    assert recipe.resources.market == "spot"
    assert recipe.budget.max_usd > CATALOG.types["p3dn.24xlarge"].on_demand_usd["us-east-1"]
    lines = scaffold_lines(made, Path("my-run"))
    assert lines[0].endswith("$31.21 an hour on demand; spot capacity costs less")
    assert any("--instance-type p3dn.24xlarge --market spot" in line for line in lines)


def test_scaffold_uses_cheapest_offer_in_home_region(catalog):
    assert scaffold(catalog, "T4:1").offer.region == "us-east-1"
    assert scaffold(catalog, "T4:1", home="eu-west-1").offer.region == "eu-west-1"
    assert scaffold(catalog, "T4:1", home="us-west-2").offer.region == "us-east-1"
    assert scaffold(catalog, "V100:8", region="eu-west-1").offer.region == "eu-west-1"


@pytest.mark.parametrize(
    ("gpu", "region", "message", "hint"),
    [
        ("V100:3", "", "no instance type has 3 V100", "cloudgpu recipe new my-run --gpu V100:8"),
        ("V10:8", "", 'unknown GPU V10; did you mean "V100"', "cloudgpu recipe new my-run --gpu V100:8"),
        ("A100-60GB:8", "", "A100 does not come with 60 GB", "cloudgpu recipe new my-run --gpu A100-80GB:8"),
        ("p3.16xlarge", "", "AWS has retired p3.16xlarge", "cloudgpu recipe new my-run --gpu p3dn.24xlarge"),
        ("K80:8", "", "AWS has retired p2.8xlarge", "cloudgpu recipe new my-run --gpu g4.metal"),
        ("dgx-1", "", "dgx-1", ""),
        ("H200:8", "", "the catalog has no hourly price for H200:8", "cloudgpu gpus show H200"),
        ("T4:1", "us-west-2", "not offered in us-west-2", "cloudgpu recipe new my-run --gpu T4:1 --region eu-west-1"),
        ("T4:1", "us-west-9", 'not a region in the catalog; did you mean "us-west-2"', "run `cloudgpu gpus`"),
    ],
)
def test_unavailable_gpu_spec_is_rejected_with_an_alternative(catalog, gpu, region, message, hint):
    with pytest.raises(UsageError) as refused:
        scaffold(catalog, gpu, region=region)
    assert message in refused.value.message
    assert refused.value.hint.startswith(hint)


@pytest.mark.parametrize("name", ["My", "1a", "a_b", "../up", "a" * 41, ""])
def test_invalid_recipe_name_is_rejected(catalog, name):
    with pytest.raises(UsageError, match="is not a valid recipe name"):
        scaffold(catalog, "T4:1", name=name)


def test_existing_files_are_not_overwritten(catalog, tmp_path):
    made = scaffold(catalog, "T4:1")
    write_scaffold(made, tmp_path / "x")
    (tmp_path / "x" / "recipe.yaml").write_text("mine")
    with pytest.raises(UsageError, match="already exists"):
        write_scaffold(made, tmp_path / "x")
    assert (tmp_path / "x" / "recipe.yaml").read_text() == "mine"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="already exists"):
        write_scaffold(made, tmp_path / "link")
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError):
        write_scaffold(made, tmp_path / "file" / "y")


def test_full_disk_leaves_no_partial_scaffold(catalog, tmp_path, monkeypatch):
    written, whole = [], Path.write_text

    def full(path, text, **named):
        written.append(path.name)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(path, text, **named)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StateError, match="no space left"):
        write_scaffold(scaffold(catalog, "T4:1"), tmp_path / "recipes" / "x")
    assert written == ["recipe.yaml", "train.py"]
    assert list((tmp_path / "recipes").iterdir()) == []


def test_scaffolded_training_script_runs_unmodified(catalog, tmp_path):
    write_scaffold(scaffold(catalog, "T4:1"), tmp_path / "x")
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "CLOUDGPU_OUTPUTS": str(tmp_path)}
    command = [sys.executable, tmp_path / "x" / "train.py", "--steps", "1"]
    done = subprocess.run(command, env=os.environ | ranks, capture_output=True, text=True, check=True, timeout=60)
    assert "rank 0 of 2 on" in done.stdout
    assert "\nsteps_per_s=" in done.stdout
    assert json.loads((tmp_path / "result.json").read_text())["ranks"] == 2


@pytest.mark.parametrize("launcher", ["torchrun", "each-node", "head-only", "service", "script"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_scaffold_of_every_launcher_plans_without_errors(launcher, nodes, tmp_path):
    write_scaffold(scaffold(CATALOG, "V100-32GB:8", nodes=nodes, launcher=launcher), tmp_path / "my-run")
    loaded = loader.load(tmp_path / "my-run" / "recipe.yaml")
    assert loaded.recipe.launch.launcher == ("each-node" if launcher == "script" else launcher)
    for target in ("rehearsal", "aws"):
        recipe = resolve(loaded, sets={}, rehearsal=target == "rehearsal")
        where = {"default_region": "us-east-1", "today": date(2026, 8, 1)}
        plan = planner.build_plan(PlannerInput(recipe, target=target, catalog=CATALOG, quotes=Quotes(), **where))
        assert [finding for finding in plan.findings if finding.severity == "error"] == []
        check_feasible(plan, loaded.base)


@pytest.mark.parametrize("launcher", ["each-node", "head-only"])
def test_scaffolded_script_of_plain_launchers_runs_unmodified(catalog, launcher, tmp_path):
    write_scaffold(scaffold(catalog, "T4:1", launcher=launcher), tmp_path / "x")
    ranks = {"CLOUDGPU_RANK": "1", "CLOUDGPU_WORLD_SIZE": "2", "CLOUDGPU_OUTPUTS": str(tmp_path)}
    command = [sys.executable, tmp_path / "x" / "train.py", "--steps", "1"]
    done = subprocess.run(command, env=os.environ | ranks, capture_output=True, text=True, check=True, timeout=60)
    assert "rank 1 of 2 on" in done.stdout


def test_scaffolded_server_serves_unmodified(catalog, tmp_path):
    write_scaffold(scaffold(catalog, "T4:1", launcher="service"), tmp_path / "x")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, tmp_path / "x" / "serve.py", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert "serving on port" in server.stdout.readline()
            with socket.create_connection(("127.0.0.1", port)) as link:
                link.sendall(b"GET / HTTP/1.0\r\n\r\n")
                answer = b"".join(iter(lambda: link.recv(4096), b""))
            assert b"200 OK" in answer
            assert b"served by" in answer
        finally:
            server.kill()


@pytest.mark.usefixtures("home")
def test_recipe_new_command_writes_a_recipe_that_plans(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["recipe", "new", "my-run", "--gpu", "V100-32GB:8", "--nodes", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "recipe": "my-run",
        "path": "recipes/my-run/recipe.yaml",
        "files": ["recipes/my-run/recipe.yaml", "recipes/my-run/train.py"],
        "instance_type": "p3dn.24xlarge",
        "nodes": 2,
        "market": "on-demand",
        "region": "us-east-1",
        "node_hourly_usd": "31.212",
    }
    assert main(["plan", "my-run", "--offline", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {candidate["instance_type"] for candidate in plan["candidates"]} == {"p3dn.24xlarge"}
    assert main(["recipe", "new", "my-web", "--gpu", "T4:1", "--launcher", "service"]) == 0
    assert "recipes/my-web/serve.py     the server" in capsys.readouterr().out
    assert main(["recipe", "new", "my-run", "--gpu", "V100-32GB:8"]) == 2
    assert "already exists" in capsys.readouterr().err


def test_scaffold_for_several_commands_has_a_setup_and_a_script(catalog, tmp_path):
    write_scaffold(scaffold(catalog, "T4:1", launcher="script"), tmp_path / "x")
    recipe = loader.load(tmp_path / "x" / "recipe.yaml").recipe
    assert recipe.setup == "python --version > python-version.txt\n"
    assert recipe.launch.run == (
        'cat python-version.txt\npython train.py --steps "$CLOUDGPU_PARAM_STEPS"\nls "$CLOUDGPU_OUTPUTS"\n'
    )
