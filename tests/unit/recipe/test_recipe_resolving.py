import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudgpu.errors import RecipeError
from cloudgpu.recipe import document, loader
from cloudgpu.recipe.loader import resolve
from cloudgpu.recipe.schema import digest

TEXT = """\
schema: 1
name: tiny
resources: {any_of: [V100:8, T4:4], nodes: 2}
environment: {container: {image: nvcr.io/nvidia/pytorch:24.12-py3}}
params: {epochs: 3, rate: 0.1, fast: false, tag: x, resume: null}
launch: {with: torchrun, command: 'train.py --epochs {epochs}'}
metrics: {loss: {pattern: 'loss=(?P<value>[0-9.]+)', better: lower}}
rehearsal:
  environment: {python: {requirements: [torch]}}
  command: small.py {epochs}
  ranks_per_node: 1
  params: {epochs: 1}
"""


@pytest.fixture(name="loaded")
def _loaded(write):
    return loader.load(write(TEXT))


def test_resolve_without_rehearsal_and_sets_changes_nothing(loaded):
    assert resolve(loaded, sets={}, rehearsal=False) == loaded.recipe


def test_rehearsal_section_overrides_named_fields_and_is_kept(loaded):
    recipe = resolve(loaded, sets={}, rehearsal=True)
    assert recipe.environment.container is None
    assert recipe.environment.python.requirements == ("torch",)
    assert (recipe.launch.command, recipe.launch.ranks_per_node) == ("small.py {epochs}", 1)
    assert recipe.params == {"epochs": 1, "rate": 0.1, "fast": False, "tag": "x", "resume": None}
    assert recipe.rehearsal == loaded.recipe.rehearsal
    assert recipe.resources == loaded.recipe.resources


def test_set_values_override_the_rehearsal_section(loaded):
    assert resolve(loaded, sets={"epochs": "7"}, rehearsal=True).params["epochs"] == 7
    assert resolve(loaded, sets={"rehearsal.params.epochs": "9"}, rehearsal=True).params["epochs"] == 9


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("epochs", "7", 7),
        ("params.epochs", "7", 7),
        ("rate", "1", 1.0),
        ("fast", "TRUE", True),
        ("tag", "12", "12"),
        ("tag", "", ""),
        ("resume", "12", 12),
        ("resume", "a: b", "a: b"),
        ("resume", "[1", "[1"),
    ],
)
def test_set_parameter_keeps_the_type_of_its_default(loaded, name, text, value):
    found = resolve(loaded, sets={name: text}, rehearsal=False).params[name.removeprefix("params.")]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("resources.nodes", "4", lambda recipe: recipe.resources.nodes == 4),
        ("resources.disk", "1TiB", lambda recipe: recipe.resources.disk == 1024),
        ("resources.regions", "us-west-2, eu-west-1", lambda r: r.resources.regions == ("us-west-2", "eu-west-1")),
        ("resources.image", "ami-1", lambda recipe: recipe.resources.image == "ami-1"),
        ("resources.image", "null", lambda recipe: recipe.resources.image is None),
        ("budget.expiry", "90m", lambda recipe: recipe.budget.expiry == 5400),
        ("budget.idle", "20m", lambda recipe: recipe.budget.idle == 1200),
        ("environment.env.A.B", "x", None),
        ("environment.env.A_B", "3", lambda recipe: recipe.environment.env == {"A_B": "3"}),
        ("metrics.loss.at_least", "0.5", lambda recipe: recipe.metrics["loss"].at_least == 0.5),
        ("launch.ranks_per_node", "2", lambda recipe: recipe.launch.ranks_per_node == 2),
        ("launch.ranks_per_node", "gpus", lambda recipe: recipe.launch.ranks_per_node == "gpus"),
        ("launch.with", "torchrun", lambda recipe: recipe.launch.launcher == "torchrun"),
        ("workdir", "null", lambda recipe: recipe.workdir is None),
    ],
)
def test_any_single_field_can_be_set(loaded, name, text, read):
    if read is None:
        with pytest.raises(RecipeError) as caught:
            resolve(loaded, sets={name: text}, rehearsal=False)
        assert "expected the name of an environment variable" in caught.value.problems[0]
        return
    assert read(resolve(loaded, sets={name: text}, rehearsal=False))


def test_setting_instance_type_clears_any_of(loaded):
    resources = resolve(loaded, sets={"resources.instance_type": "p3dn.24xlarge"}, rehearsal=False).resources
    assert (resources.instance_type, resources.any_of, resources.nodes) == ("p3dn.24xlarge", (), 2)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("epoch", "1", '--set epoch: no such parameter or field; did you mean "epochs"?'),
        ("params.new", "1", "--set params.new: no such parameter or field"),
        ("epochs", "many", "--set epochs=many: expected a whole number, like its default 3"),
        ("epochs", "0.5", "--set epochs=0.5: expected a whole number, like its default 3"),
        ("fast", "maybe", "--set fast=maybe: expected true or false, like its default false"),
        ("resources.node", "1", '--set resources.node: no such parameter or field; did you mean "resources.nodes"?'),
        ("nodes", "1", '--set nodes: no such parameter or field; did you mean "resources.nodes"?'),
        ("resources", "1", "--set resources: cannot be set as a whole; set a single field"),
        ("data", "1", "--set data: cannot be set as a whole; set a single field"),
        ("environment.env", "1", "--set environment.env: cannot be set as a whole; set a single field"),
        ("metrics.lost.unit", "x", "--set metrics.lost.unit: the recipe does not have this section"),
        ("resources.nodes.x", "1", "--set resources.nodes.x: no such parameter or field"),
        ("", "1", "--set : no such parameter or field"),
        ("resources.nodes", "x", "resources.nodes: expected a whole number, got x"),
        ("rate", "nan", "params.rate: expected text, a finite number, true or false, or null"),
        ("launch.command", "a {b}", "launch.command: unknown placeholder {b}"),
        ("environment.python.version", "3.11", "environment.container is already set; set either container or python"),
    ],
)
def test_invalid_assignment_error_states_the_reason(loaded, name, text, message):
    with pytest.raises(RecipeError) as caught:
        resolve(loaded, sets={name: text}, rehearsal=False)
    assert message in "\n".join([caught.value.message, *caught.value.problems])
    assert caught.value.problems


def test_recipe_round_trips_through_yaml(loaded):
    for rehearsal in (False, True):
        recipe = resolve(loaded, sets={"budget.max_usd": "12.5"}, rehearsal=rehearsal)
        value = document.parse(document.as_yaml(recipe)).value
        assert loader.validate_recipe(value, loaded.base) == (recipe, ())


QUICKSTART = Path(__file__).parents[3] / "recipes" / "quickstart" / "recipe.yaml"

GOLDEN = """\
schema: 1
name: tiny
resources:
  any_of:
    - V100:8
    - T4:4
  nodes: 2
environment:
  python:
    requirements:
      - torch
params:
  epochs: 1
  rate: 0.1
  fast: false
  tag: x
  resume: null
launch:
  with: torchrun
  command: small.py {epochs}
  ranks_per_node: 1
metrics:
  loss:
    pattern: loss=(?P<value>[0-9.]+)
    better: lower
budget:
  max_usd: 40
rehearsal:
  environment:
    python:
      requirements:
        - torch
  command: small.py {epochs}
  ranks_per_node: 1
  params:
    epochs: 1
"""


def test_resolved_recipe_yaml_omits_defaults(loaded):
    assert (
        document.as_yaml(resolve(loaded, sets={"budget.max_usd": "40"}, rehearsal=True)).replace(
            "resume:\n", "resume: null\n"
        )
        == GOLDEN
    )


def test_digest_ignores_order_and_defaults_but_depends_on_every_value(loaded):
    recipe = loaded.recipe
    other_order = dict(reversed(recipe.params.items()))
    assert digest(recipe) == digest(recipe.model_copy(update={"params": other_order}))
    assert digest(recipe) == digest(resolve(loaded, sets={"resources.disk": "200GiB"}, rehearsal=False))
    assert digest(recipe) != digest(resolve(loaded, sets={"rate": "0.2"}, rehearsal=False))
    assert len(digest(recipe)) == 64


def test_digest_of_a_known_recipe_is_stable(loaded):
    # A changed digest makes every recorded run look like another recipe: change it on purpose only.
    assert digest(loaded.recipe) == "b87b58ec585d21ee061f5bf60f5a21eb1dc1fdbde762bef2b62fd3dc57aabe80"


@settings(deadline=None)  # a busy machine is no bug
@given(
    st.dictionaries(st.sampled_from(["epochs", "rate", "fast", "tag", "resume", "nope", "a.b"]), st.text(max_size=8))
)
def test_any_assignment_yields_a_recipe_or_a_recipe_error(sets):
    loaded = loader.load(QUICKSTART)
    with contextlib.suppress(RecipeError):
        assert set(resolve(loaded, sets=sets, rehearsal=True).params) == set(loaded.recipe.params)


def test_command_and_script_replace_each_other(loaded, write):
    script = resolve(loaded, sets={"launch.run": "make test"}, rehearsal=False).launch
    assert (script.command, script.run) == ("", "make test")
    text = TEXT.replace("command: 'train.py --epochs {epochs}'", "run: make train").replace(
        "  command: small.py", "  command: x"
    )
    rehearsed = resolve(loader.load(write(text)), sets={}, rehearsal=True).launch
    assert (rehearsed.command, rehearsed.run) == ("x {epochs}", "")
    text = TEXT.replace("  command: small.py {epochs}", "  run: make small")
    rehearsed = resolve(loader.load(write(text)), sets={}, rehearsal=True).launch
    assert (rehearsed.command, rehearsed.run) == ("", "make small")


def test_entries_are_added_to_a_list(loaded):
    secrets = resolve(loaded, sets={"environment.secrets+": "B,A,B"}, rehearsal=False).environment.secrets
    assert secrets == ("B", "A")
    changed = resolve(loaded, sets={"resources.any_of+": "A100:8,T4:4"}, rehearsal=False).resources.any_of
    assert changed == ("V100:8", "T4:4", "A100:8")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("description+", "--set description+=: description is not a list"),
        ("epochs+", "--set epochs: no such parameter or field"),
        ("environment.secretz+", 'did you mean "environment.secrets"?'),
    ],
)
def test_entries_cannot_be_added_to_another_field(loaded, name, message):
    with pytest.raises(RecipeError) as caught:
        resolve(loaded, sets={name: "x"}, rehearsal=False)
    assert message in caught.value.message
