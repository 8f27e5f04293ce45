"""`--matrix`: the resulting combinations and the problems reported for invalid ones."""

from math import prod

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloudgpu.errors import RecipeError, UsageError
from cloudgpu.recipe import loader
from cloudgpu.recipe.matrix import MAX_COMBINATIONS, Axis, combinations, read_axes

TEXT = """\
schema: 1
name: tiny
resources: {any_of: [V100:8, T4:4], nodes: 2}
params: {kvstore: local, epochs: 3, rate: 0.1, fast: false, resume: null}
launch: {with: torchrun, command: 'train.py {epochs} {kvstore}'}
rehearsal: {params: {epochs: 1}}
"""


@pytest.fixture(name="loaded")
def _loaded(write):
    return loader.load(write(TEXT))


@pytest.fixture(name="made")
def _made(loaded):
    def make(*texts, sets=None, rehearsal=False):
        return combinations(loaded, read_axes(texts), sets or {}, rehearsal=rehearsal)

    return make


def test_combinations_are_ordered_and_typed_like_the_defaults(made):
    every = made("kvstore=a,b", "epochs=1,2", "fast=true")
    assert [one.label for one in every] == [
        "kvstore=a epochs=1 fast=true",
        "kvstore=a epochs=2 fast=true",
        "kvstore=b epochs=1 fast=true",
        "kvstore=b epochs=2 fast=true",
    ]
    assert every[3].recipe.params == {"kvstore": "b", "epochs": 2, "rate": 0.1, "fast": True, "resume": None}
    assert len({one.digest for one in every}) == 4


def test_matrix_varies_fields_and_is_combined_with_set_values(made):
    (one, two) = made("launch.ranks_per_node=1,gpus", sets={"epochs": "9"})
    assert (one.recipe.launch.ranks_per_node, two.recipe.launch.ranks_per_node) == (1, "gpus")
    assert one.recipe.params["epochs"] == two.recipe.params["epochs"] == 9


def test_matrix_overrides_the_rehearsal_section(made):
    (one,) = made("kvstore=a", rehearsal=True)
    assert one.recipe.params["epochs"] == 1
    assert [one.recipe.params["epochs"] for one in made("epochs=4,5", rehearsal=True)] == [4, 5]


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("a=1,2", Axis("a", ("1", "2"))),
        (" a = 1 , 2 ", Axis("a", ("1", "2"))),
        ('a="x, y",z', Axis("a", ("x, y", "z"))),
        ("a=b=c,d", Axis("a", ("b=c", "d"))),
        ("a=only", Axis("a", ("only",))),
    ],
)
def test_axis_is_parsed_from_command_line_text(text, axis):
    assert read_axes([text]) == (axis,)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["a"], "expected NAME=VALUE,VALUE"),
        (["=1"], "expected NAME=VALUE,VALUE"),
        ([""], "expected NAME=VALUE,VALUE"),
        (["a="], "a value is empty"),
        (["a=1,,2"], "a value is empty"),
        (["a=1,"], "a value is empty"),
        (["a=1,2,1"], "1 is given twice"),
        (["a=1", "a=2"], "--matrix a is given twice"),
        ([f"a={','.join(map(str, range(100)))}", f"b={','.join(map(str, range(100)))}"], "100 x 100 make 10,000"),
    ],
)
def test_invalid_axis_is_rejected_with_a_hint(texts, says):
    with pytest.raises(UsageError, match=says) as caught:
        read_axes(texts)
    assert caught.value.hint


def test_unknown_axis_name_and_wrong_values_are_reported_together(made):
    with pytest.raises(RecipeError) as caught:
        made("kvstor=a,b", "epochs=1,x,y", "rate=fast")
    assert list(caught.value.problems) == [
        '--matrix kvstor: no such parameter or field; did you mean "kvstore"?',
        "--matrix epochs=x: expected a whole number, like its default 3",
        "--matrix epochs=y: expected a whole number, like its default 3",
        "--matrix rate=fast: expected a number, like its default 0.1",
    ]


def test_recipe_problem_is_reported_once_with_its_combinations(made):
    with pytest.raises(RecipeError) as caught:
        made("launch.ranks_per_node=1,100", "kvstore=a,b")
    assert list(caught.value.problems) == [
        "launch.ranks_per_node=100 kvstore=a; launch.ranks_per_node=100 kvstore=b: "
        "launch.ranks_per_node: expected at most 64 or gpus, got 100"
    ]
    with pytest.raises(RecipeError, match="some combinations") as caught:
        made("launch.command='train.py {nothing}',train.py {none}".replace("'", ""))
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("texts", "sets", "says"),
    [
        (["params.epochs=1", "epochs=2"], {}, "--matrix epochs and --matrix params.epochs set the same field"),
        (["epochs=1,2"], {"epochs": "3"}, "--matrix epochs and --set epochs set the same field"),
        (["epochs=1,01"], {}, "epochs=1 and epochs=01 result in the same run"),
    ],
)
def test_duplicate_axes_or_values_are_rejected(made, texts, sets, says):
    with pytest.raises(UsageError, match=says):
        made(*texts, sets=sets)


names = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1, max_size=4)
values = st.lists(st.text(st.characters(categories=("L", "N")), min_size=1, max_size=3), unique=True, min_size=1)


@given(names, st.data())
def test_parsed_axes_equal_typed_values(axis_names, data):
    typed = {name: data.draw(values) for name in axis_names}
    texts = [f"{name}={','.join(listed)}" for name, listed in typed.items()]
    if prod(len(listed) for listed in typed.values()) > MAX_COMBINATIONS:
        with pytest.raises(UsageError):
            read_axes(texts)
    else:
        assert {axis.name: list(axis.values) for axis in read_axes(texts)} == typed


@given(st.text(max_size=40))
@example("0=\n0")
def test_any_axis_text_is_parsed_or_rejected(text):
    try:
        (axis,) = read_axes([text])
    except UsageError:
        return
    assert axis.name
    assert all(axis.values)
