"""Output of `recipe list` and `recipe check`."""

import json
import re

import pytest

from cloudgpu.cli.main import main
from cloudgpu.plan.checks.environment import SETUP_IN_IMAGE

GOOD = """\
schema: 1
name: {name}
description: Trains something.
resources: {{any_of: [V100-32GB:8, p4d.24xlarge], nodes: 2}}
environment: {{container: {{image: registry.example.com/a/very/long/path/of/an/image/somewhere:24.05}}}}
params: {{epochs: 3}}
launch: {{with: torchrun, command: 'true {{epochs}}'}}
metrics:
  loss: {{pattern: '(?P<value>.)', better: lower}}
  speed: {{pattern: '(?P<value>.)', better: higher, unit: img/s, reference: {{value: 7850, on: x, source: y}}}}
"""


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    folder = tmp_path / "recipes"

    def write(name, text=GOOD):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "recipe.yaml").write_text(text.format(name=name))

    write("first")
    write("second")
    return write


def test_recipe_list_shows_hardware_launcher_software_and_reference(recipes, capsys):
    assert main(["recipe", "list"]) == 0
    heading, first, sentence, *_ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["recipe", "on", "with", "software", "reference"]
    name, hardware, launcher, software, reference = re.split(r" {2,}", first.strip())
    assert (name, hardware, launcher) == ("first", "2 x V100-32GB:8 or p4d.24xlarge", "torchrun")
    assert software == "registry.example.com/a/very/long/path/of/an/image/somewhere:24.05"
    assert reference == "speed 7,850 img/s"
    assert sentence == "    Trains something."


def test_invalid_recipe_does_not_hide_other_recipes(recipes, capsys):
    recipes("wrong", "schema: 1\nname: wrong\nlaunch: {{with: torchrun}}\n")
    assert main(["recipe", "list"]) == 0
    out = capsys.readouterr().out
    assert "\nfirst " in out
    assert "wrong  has 2 problems; for details: cloudgpu recipe check " in out
    assert main(["recipe", "list", "--json"]) == 0
    by_name = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert by_name["first"]["problems"] == []
    assert by_name["first"]["parameters"] == ["epochs"]
    assert len(by_name["wrong"]["problems"]) == 2


def test_recipe_check_reports_all_problems_in_a_folder(recipes, capsys):
    assert main(["recipe", "check", "recipes"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    recipes("odd", "schema: 1\nname: odd\nlaunch: {{with: torchrun}}\n")
    recipes("even", GOOD.replace("epochs: 3", "epochs: 3, 1x: 2"))
    assert main(["recipe", "check", "recipes"]) == 2
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert "2 of 4 recipes have problems: even, odd" in shown.err
    for problem in ("even/recipe.yaml:6: params.1x:", "odd/recipe.yaml:3: launch.command:", "odd/recipe.yaml"):
        assert problem in shown.err
    assert main(["recipe", "check", "recipes", "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["error"]["details"]) == 3


def test_recipe_check_accepts_the_folder_of_one_recipe(recipes, capsys):
    assert main(["recipe", "check", "recipes/first"]) == 0
    assert "first is a valid recipe" in capsys.readouterr().out


def test_recipe_check_of_a_folder_writes_json(recipes, capsys):
    assert main(["recipe", "check", "recipes", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"]
    assert [one["recipe"] for one in document["recipes"]] == ["first", "second"]


def test_shown_recipe_is_yaml_that_can_be_checked(recipes, capsys, tmp_path):
    assert main(["recipe", "show", "first", "--set", "epochs=5"]) == 0
    (tmp_path / "shown.yaml").write_text(capsys.readouterr().out)
    assert "\nparams:\n  epochs: 5\n" in (tmp_path / "shown.yaml").read_text()
    assert main(["recipe", "check", "shown.yaml"]) == 0


def test_checked_recipe_is_named_by_its_path_from_the_working_directory(recipes, capsys):
    assert main(["recipe", "check", "first"]) == 0
    assert capsys.readouterr().out == "recipes/first/recipe.yaml: first is a valid recipe\n"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("A100-32GB:8", "A100 does not come with 32 GB of memory; available sizes: 40 GB, 80 GB"),
        ("V10:8", 'unknown GPU V10; did you mean "V100"?'),
    ],
)
def test_recipe_check_reports_gpus_that_do_not_exist(recipes, capsys, spec, why):
    recipes("wrong", GOOD.replace("any_of: [V100-32GB:8, p4d.24xlarge]", f"gpu: {spec!r}"))
    recipes("late", GOOD.replace("p4d.24xlarge]", f"{spec!r}]"))
    for name, field in (("wrong", "resources.gpu"), ("late", "resources.any_of[1]")):
        assert main(["recipe", "check", name]) == 2
        shown = capsys.readouterr().err
        assert f"recipes/{name}/recipe.yaml:4: {field}: {why}\n" in shown
        assert shown.endswith("hint: to list GPUs with their memory: cloudgpu gpus\n")
    assert main(["recipe", "check", "first", "--set", f"resources.any_of={spec}"]) == 2
    assert main(["recipe", "check", "recipes"]) == 2


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "p3.16xlarge",
            "AWS retired p3.16xlarge on 2025-12-20, and it can no longer be launched; its successor is p3dn.",
        ),
        (
            "g5g.xlarge",
            "g5g.xlarge has Arm processors, and cloudgpu supports only x86_64 machines; the nearest type is ",
        ),
    ],
)
def test_recipe_check_names_the_successor_of_a_type_that_cannot_be_launched(recipes, capsys, name, why):
    recipes("wrong", GOOD.replace("any_of: [V100-32GB:8, p4d.24xlarge]", f"instance_type: {name}"))
    assert main(["recipe", "check", "wrong"]) == 2
    assert f"recipes/wrong/recipe.yaml:4: resources.instance_type: {why}" in capsys.readouterr().err


def test_recipe_check_warns_about_a_retired_type_among_others(recipes, capsys):
    recipes("mixed", GOOD.replace("V100-32GB:8, p4d", "p3.16xlarge, p4d"))
    assert main(["recipe", "check", "mixed"]) == 0
    out = capsys.readouterr().out
    assert "resources.any_of[0]: AWS retired p3.16xlarge" in out


def test_recipe_check_accepts_gpus_that_only_own_hosts_have(recipes):
    recipes("own", GOOD.replace("any_of: [V100-32GB:8, p4d.24xlarge]", "gpu: 'M40:3'"))
    assert main(["recipe", "check", "own"]) == 0


def test_recipe_check_notes_a_setup_in_the_image_from_any_source(recipes, capsys):
    del recipes
    assert main(["recipe", "check", "first", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []
    assert main(["recipe", "check", "first", "--json", "--set", "setup=make"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [SETUP_IN_IMAGE]


def test_recipe_check_says_how_to_correct_gpus_and_files(recipes, capsys):
    wrong = GOOD.replace("any_of: [V100-32GB:8, p4d.24xlarge]", "gpu: V10:8").replace("'true {{epochs}}'", "missing.py")
    recipes("wrong", wrong)
    assert main(["recipe", "check", "wrong"]) == 2
    hint = "hint: add the files, or correct their names; to list GPUs with their memory: cloudgpu gpus\n"
    assert capsys.readouterr().err.endswith(hint)
