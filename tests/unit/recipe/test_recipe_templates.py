import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudgpu.errors import RecipeError
from cloudgpu.recipe import template


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train.py --epochs {epochs}", ("train.py", "--epochs", "3")),
        ("train.py --name={name}", ("train.py", "--name=two words; rm -rf 'x'")),
        ("{name}", ("two words; rm -rf 'x'",)),
        ("a '{name} {epochs}' b", ("a", "two words; rm -rf 'x' 3", "b")),
        ("echo {{epochs}} {{{epochs}}}", ("echo", "{epochs}", "{3}")),
        ("a {off} {none} {data.my-set}", ("a", "false", "", "/data/x")),
        ("a\n  --b\n", ("a", "--b")),
    ],
)
def test_placeholder_value_stays_a_single_argument(command, expected):
    values = {"epochs": 3, "name": "two words; rm -rf 'x'", "off": False, "none": None, "data.my-set": "/data/x"}
    assert template.argv(command, values) == expected


def test_placeholder_in_a_value_is_not_expanded_again():
    assert template.argv("a {x}", {"x": "{y}", "y": "z"}) == ("a", "{y}")


def test_unknown_placeholder_error_suggests_nearest_name():
    with pytest.raises(RecipeError, match=r'unknown placeholder \{epoch\}; did you mean "epochs"'):
        template.argv("a {epoch}", {"epochs": 1})


@settings(deadline=None)  # a busy machine is no bug
@given(st.text(max_size=30), st.text(max_size=30))
def test_any_two_values_become_two_arguments(first, second):
    assert template.argv("run {a} {b}", {"a": first, "b": second}) == ("run", first, second)
