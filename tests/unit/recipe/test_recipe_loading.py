import os
from pathlib import Path

import pytest

from cloudgpu.errors import RecipeError
from cloudgpu.recipe import loader

GOOD = """\
schema: 1
name: tiny
resources:
  gpu: V100:8
launch:
  with: torchrun
  command: train.py --epochs {epochs}
params:
  epochs: 3
"""

SHOWN = "recipes/x/recipe.yaml"


def test_valid_recipe_loads_with_its_base_directory(write):
    path = write(GOOD)
    loaded = loader.load(path)
    assert (loaded.recipe.name, loaded.path, loaded.base) == ("tiny", path, path.parent)
    assert loaded.recipe.resources.nodes == 1


def test_sizes_in_gb_round_so_that_gpus_match_and_disks_suffice(write):
    """Regression: `gpu_memory: 32GB` was refused, although `gpus --min-memory 32GB` works."""
    text = GOOD.replace("gpu: V100:8", "gpu: V100:8\n  gpu_memory: 24GB\n  disk: 200GB")
    resources = loader.load(write(text)).recipe.resources
    assert (resources.gpu_memory, resources.disk) == (22, 187)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (GOOD + "nodes: 2\n", "docs/reference/recipe.md describes all fields"),
        (GOOD + "a: b: c\n", "correct the YAML syntax; text that contains a colon and a space needs quotes"),
    ],
)
def test_hint_names_the_page_of_fields_or_the_syntax(write, text, hint):
    """Regression: every error, also of the syntax, led to 1,560 lines of JSON Schema."""
    with pytest.raises(RecipeError) as caught:
        loader.load(write(text))
    assert caught.value.hint == hint


def test_all_problems_are_reported_with_line_field_and_suggestion(problems):
    text = """\
schema: 1
name: Tiny One
resources:
  gpu: V100
  node: 2
  market: spto
  disk: 300
launch:
  with: torchrum
  command: train.py
metrics:
  accuracy:
    pattern: 'acc=([0-9.]+)'
    better: up
data:
  - name: digits
    from: nowhere/
    to: data
environment:
  container: {image: x}
  python: {requirements: [torch]}
budgt: {max_usd: 3}
"""
    assert problems(text) == [
        f"{SHOWN}:2: name: expected up to 40 lowercase letters, digits and dashes, starting with a letter, "
        "got Tiny One",
        f'{SHOWN}:5: resources.node: unknown field; did you mean "nodes"?',
        f"{SHOWN}:6: resources.market: expected on-demand, spot, reservation or capacity-block, got spto; "
        'did you mean "spot"?',
        f"{SHOWN}:7: resources.disk: expected a size with its unit (GiB, TiB, GB or TB), for example 300GiB",
        f"{SHOWN}:9: launch.with: expected torchrun, mpirun, deepspeed, kvstore, tf-config, each-node, head-only or "
        'service, got torchrum; did you mean "torchrun"?',
        f"{SHOWN}:14: metrics.accuracy.better: expected higher or lower, got up",
        f"{SHOWN}:17: data[0].from: no such file or directory: 'nowhere/'",
        f"{SHOWN}:18: data[0].to: expected an absolute directory, for example /data/x, got data",
        f"{SHOWN}:21: environment.python: environment.container is already set; set either container or python",
        f'{SHOWN}:22: budgt: unknown field; did you mean "budget"?',
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("schema: 1", "schema: 2", "1: schema: expected 1, got 2"),
        ("schema: 1\n", "", "1: schema: required field is missing"),
        ("  gpu: V100:8", "  {}", "3: resources: requires one of gpu, any_of or instance_type"),
        ("  gpu: V100:8", "  gpu: V100:8\n  instance_type: a.b", "5: resources.instance_type: gpu is already set"),
        ("  gpu: V100:8", "  any_of: [V100:8, T4]", "4: resources.any_of[1]: expected a GPU model and count per node"),
        ("  gpu: V100:8", "  gpu: V100:8\n  nodes: true", "5: resources.nodes: expected a whole number, got true"),
        (
            "  gpu: V100:8",
            "  gpu: V100:8\n  market: capacity-block",
            "3: resources.reservation: required with market: capacity-block",
        ),
        (
            "  gpu: V100:8",
            "  gpu: V100:8\n  reservation: cr-0a1b2c3d4e5f60718",
            "5: resources.reservation: applies only to market: reservation or capacity-block",
        ),
        ("  gpu: V100:8", "  gpu: V100:8\n  nodes: 0", "5: resources.nodes: expected at least 1, got 0"),
        (
            "  gpu: V100:8",
            "  gpu: V100:8\n  regions: [us-east-1]\n  zones: [us-west-2a]",
            "6: resources.zones[0]: us-west-2a is not in any of resources.regions (us-east-1)",
        ),
        ("{epochs}", "{epoch}", '7: launch.command: unknown placeholder {epoch}; did you mean "epochs"?'),
        ("{epochs}", "'", "7: launch.command: cannot split the command into arguments: no closing quotation"),
        ("{epochs}", "{epochs", "7: launch.command: single { in {epochs; write {{ for a literal {"),
        ("{epochs}", "1 && rm x", "7: launch.command: the command runs without a shell, so && would be an argument"),
        ("{epochs}", "{checkpoint}", "7: launch.command: unknown placeholder {checkpoint}; known placeholders: epochs"),
        ("train.py --epochs {epochs}", "''", "7: launch.command: expected a command, got nothing"),
        ("  epochs: 3", "  epochs: 3\n  run: 3", "10: params.run: {run} is a built-in placeholder"),
        ("  epochs: 3", "  epochs: .nan", "9: params.epochs: expected text, a finite number, true or false, or null"),
        ("  epochs: 3", "  epochs: [1]", "9: params.epochs: expected text, a finite number, true or false, or null"),
        ("params:", "workdir: nowhere\nparams:", "8: workdir: no such directory: nowhere"),
        ("params:", "outputs: [../x]\nparams:", "8: outputs[0]: expected a path below the work directory, got ../x"),
        ("params:", "checkpoint: {path: /x}\nparams:", "8: checkpoint.path: expected a path below the work directory"),
        (
            "params:",
            "rehearsal: {params: {epoch: 1}}\nparams:",
            "8: rehearsal.params.epoch: unknown parameter; did you",
        ),
        ("params:", "rehearsal: {command: 'a {b}'}\nparams:", "8: rehearsal.command: unknown placeholder {b}"),
        (
            "params:",
            "rehearsal: {objects: {s3://bucket/a/: none}}\nparams:",
            "8: rehearsal.objects.s3://bucket/a/: no such file or directory: 'none'",
        ),
        ("params:", "environment: {env: {A: 1}}\nparams:", '8: environment.env.A: expected text, got 1; write "1" in'),
        (
            "params:",
            "environment: {env: {KEY: x}, secrets: [KEY]}\nparams:",
            "8: environment.secrets[0]: KEY is also set in env, but recipes must not contain secret values",
        ),
        (
            "params:",
            "metrics: {a: {pattern: '(', better: lower}}\nparams:",
            "8: metrics.a.pattern: not a regular expre",
        ),
        (
            "params:",
            "metrics: {a: {pattern: '" + "(" * 2000 + ")" * 2000 + "', better: lower}}\nparams:",
            "8: metrics.a.pattern: not a regular expression: its groups are nested too deeply",
        ),
        (
            "params:",
            "metrics: {a: {pattern: 'a{99999999999}', better: lower}}\nparams:",
            "8: metrics.a.pattern: not a regular expression: the repetition number is too large",
        ),
        (
            "params:",
            "metrics: {a: {pattern: '" + "[a-z]" * 1000 + "', better: lower}}\nparams:",
            "8: metrics.a.pattern: the pattern is longer than 4096 characters",
        ),
        (
            "params:",
            "metrics: {a: {pattern: 'x', better: lower}}\nparams:",
            "8: metrics.a.pattern: expected a group nam",
        ),
        ("params:", "outputs: [~/out]\nparams:", "8: outputs[0]: expected a path below the work directory, got ~/out"),
        ("params:", "outputs: [$HOME/a]\nparams:", "8: outputs[0]: expected a path below the work directory, got $HOM"),
        (
            "params:",
            "metrics: {a: {pattern: '(?P<value>x)', better: lower, at_least: 2, at_most: 1}}\nparams:",
            "8: metrics.a.at_most: no value is at least 2 and at most 1",
        ),
        (
            "params:",
            "data: [{name: a, from: ftp://x, to: /a}]\nparams:",
            "8: data[0].from: ftp://x: ftp://",
        ),
        (
            "params:",
            "data: [{name: a, from: ., to: /a}, {name: a, from: ., to: /b}]\nparams:",
            "8: data[1].name: another dataset is already named a",
        ),
        (
            "params:",
            "data: [{name: a, from: ., to: /a, manifest: m}]\nparams:",
            "8: data[0].manifest: no such file or d",
        ),
        ("params:", "budget: {expiry: 8}\nparams:", "8: budget.expiry: expected a duration with its unit"),
        ("params:", "budget: {max_usd: -1}\nparams:", "8: budget.max_usd: expected more than 0, got -1"),
    ],
)
def test_single_problem_is_reported_at_its_line(problems, old, new, expected):
    assert old in GOOD
    (found,) = problems(GOOD.replace(old, new))
    assert found.startswith(f"{SHOWN}:{expected}")


def test_non_utf8_non_mapping_or_oversized_file_is_rejected(problems):
    assert problems(b"schema: 1\nname: \xff\xfe\n") == [f"{SHOWN}:2: not UTF-8 text (byte 16)"]
    assert problems("- a\n- b\n") == [f"{SHOWN}:1: expected a mapping of fields, starting with schema: 1"]
    assert problems("x" * (loader.MAX_BYTES + 1)) == [f"{SHOWN} is larger than 1 MiB, the limit for recipes"]


def test_byte_order_mark_is_accepted(write):
    assert loader.load(write("\ufeff" + GOOD)).recipe.name == "tiny"


def test_internal_field_name_is_rejected(problems):
    found = problems(GOOD.replace("with: torchrun", "launcher: torchrun"))
    assert any("launch.launcher: unknown field" in line for line in found)


@pytest.mark.parametrize("given", ["recipes/x", "recipes/x/recipe.yaml", "x", "./recipes/x"])
def test_recipe_is_found_by_directory_file_or_name(write, given):
    path = write(GOOD)
    found = loader.find(given, roots=[Path("recipes")])
    assert found.resolve() == path


def test_single_file_recipe_is_found_by_name(write):
    path = write(GOOD).parent.parent / "single.yaml"
    path.write_text(GOOD)
    assert loader.find("single", roots=[path.parent]) == path


def test_directory_without_a_recipe_does_not_shadow_the_named_recipe(write, tmp_path):
    path = write(GOOD)
    (tmp_path / "x").mkdir()
    assert loader.find("x", roots=[tmp_path / "recipes"]) == path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("xy", 'no recipe named "xy"; did you mean "x"?'),
        ("some/where", "no such recipe: some/where"),
        ("recipes", "recipes is a directory without a recipe.yaml"),
        ("", 'no recipe named ""'),
        ("a\0b", 'no recipe named "a\0b"'),
        ("n" * 5000, f'no recipe named "{"n" * 5000}"'),
    ],
)
def test_unknown_recipe_error_suggests_nearest_name_and_lists_recipes(write, given, message):
    root = write(GOOD).parent.parent
    with pytest.raises(RecipeError) as caught:
        loader.find(given, roots=[root])
    assert caught.value.message == message
    assert caught.value.hint == "available recipes: x; or create one: cloudgpu recipe new"


def test_named_pipe_is_rejected_without_blocking(tmp_path):
    pipe = tmp_path / "recipe.yaml"
    os.mkfifo(pipe)
    with pytest.raises(RecipeError, match="no such file:"):
        loader.load(pipe)


def test_loading_a_directory_is_rejected(tmp_path):
    with pytest.raises(RecipeError, match=r"is a directory without a recipe\.yaml"):
        loader.load(tmp_path)


def test_first_root_with_the_name_takes_precedence(tmp_path):
    for root in ("mine", "theirs"):
        (tmp_path / root / "same").mkdir(parents=True)
        (tmp_path / root / "same" / "recipe.yaml").write_text(GOOD)
    roots = [tmp_path / "mine", tmp_path / "theirs"]
    assert loader.find_named_recipes(roots) == (tmp_path / "mine" / "same" / "recipe.yaml",)
    assert loader.recipe_names(roots) == ("same",)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            "environment: {python: {version: 3.10}}",
            'environment.python.version: expected text, got 3.10; write "3.10" in',
        ),
        ("environment: {env: {MODE: 0755}}", 'environment.env.MODE: expected text, got 0755; write "0755" in quotes'),
        ("environment: {env: {ON: True}}", 'environment.env.ON: expected text, got True; write "True" in quotes'),
        ("environment: {env: {N: 1_000}}", 'environment.env.N: expected text, got 1_000; write "1_000" in quotes'),
        ("environment: {env: {N: 1e3}}", 'environment.env.N: expected text, got 1e3; write "1e3" in quotes'),
    ],
)
def test_text_that_yaml_reads_as_a_number_is_shown_as_it_is_written(write, section: str, said: str):
    with pytest.raises(RecipeError) as caught:
        loader.load(write(f"{GOOD}{section}\n"))
    assert [line for line in caught.value.problems if said in line], caught.value.problems


def test_parameters_that_yaml_changes_are_kept_as_they_are_written(write):
    """YAML 1.2 reads `on`, dates and 1:30 as text, so only numbers and booleans change."""
    changed = {"a": "3.10", "b": "0123", "c": "1_000", "d": "1e3", "e": "0x1F", "f": "True", "g": "+1", "h": "0.10"}
    kept = {
        "i": "on",
        "j": "1:30",
        "k": "2026-01-02",
        "l": "3.1",
        "m": "10",
        "n": "0.00002",
        "o": "true",
        "p": '"3.10"',
    }
    lines = "".join(f"  {name}: {text}\n" for name, text in {**changed, **kept}.items())
    loaded = loader.load(write(f"{GOOD}{lines}"))
    assert loaded.rewritten == changed
    assert loaded.recipe.params["i"] == "on"
    assert loaded.recipe.params["p"] == "3.10"


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ("{CostCenter: 42}", "tags.CostCenter"),
        ("{Name: x}", "this key is reserved"),
        ('{"cloudgpu:owner": bob}', "the prefix cloudgpu: is reserved"),
        ('{a: "x,y"}', "letters, digits"),
        ("[a]", "tags"),
    ],
)
def test_tags_that_aws_rejects_are_reported_with_their_line(problems, tags, problem):
    (found,) = problems(f"{GOOD}tags: {tags}\n")
    assert problem in found
    assert "recipe.yaml:10: tags" in found


def test_tags_are_texts(write):
    recipe = loader.load(write(f'{GOOD}tags: {{CostCenter: "0042"}}\n')).recipe
    assert recipe.tags == {"CostCenter": "0042"}
