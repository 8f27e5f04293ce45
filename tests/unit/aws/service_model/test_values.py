"""Values against their shapes: types, enumerations, ranges, patterns, required and unknown members."""

import io
import re
from datetime import UTC, datetime

import pytest
from botocore.model import ShapeResolver
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.aws.service_model import find_mismatches
from tests.unit.aws.service_model.models import SHAPES

NODE = ShapeResolver(SHAPES).get_shape_by_name("Node")
NOW = datetime(2026, 11, 22, tzinfo=UTC)
GOOD = {
    "Name": "red",
    "State": "on",
    "Size": 3,
    "Ratio": 0.5,
    "Flag": True,
    "Time": NOW,
    "Data": b"x",
    "Secret": "abc",
    "Names": ["red", "blue"],
    "Sizes": {"red": 1},
    "Either": {"A": "red"},
}


def found(value) -> list[str]:
    return [str(mismatch) for mismatch in find_mismatches(NODE, value)]


def test_value_that_fits_its_shape_has_no_mismatch():
    assert found(GOOD) == []
    assert found(GOOD | {"Data": io.BytesIO(b"x")}) == []


@pytest.mark.parametrize(
    ("change", "mismatch"),
    [
        ({"Colour": "red"}, "Colour: unknown member of Node"),
        ({"Name": 5}, "Name: 5 is not a string (Name)"),
        ({"Name": "Red"}, "Name: 'Red' does not match the pattern of Name"),
        ({"Name": "red "}, "Name: 'red ' does not match the pattern of Name"),
        ({"Name": "r"}, "Name: 1 characters, but Name has 2 to 8"),
        ({"State": "up"}, "State: 'up' is not a value of State"),
        ({"State": ""}, "State: '' is not a value of State"),
        ({"Size": 0}, "Size: 0 is outside 1 to 10, the range of Size"),
        ({"Size": True}, "Size: True is not a integer (Size)"),
        ({"Size": "3"}, "Size: '3' is not a integer (Size)"),
        ({"Size": 3.0}, "Size: 3.0 is not a integer (Size)"),
        ({"Ratio": "0.5"}, "Ratio: '0.5' is not a double (Ratio)"),
        ({"Flag": "true"}, "Flag: 'true' is not a boolean (Flag)"),
        ({"Time": ""}, "Time: '' is not a timestamp (Time)"),
        ({"Data": 5}, "Data: 5 is not a blob (Data)"),
        ({"Names": "red"}, "Names: 'red' is not a list (Names)"),
        ({"Names": ["red", "Blue"]}, "Names[1]: 'Blue' does not match the pattern of Name"),
        ({"Names": ["red"] * 4}, "Names: 4 items, but Names has 0 to 3"),
        ({"Sizes": {"red": 11}}, "Sizes[red]: 11 is outside 1 to 10, the range of Size"),
        ({"Sizes": {"Red": 1}}, "Sizes key: 'Red' does not match the pattern of Name"),
        ({"Sizes": []}, "Sizes: [] is not a map (Sizes)"),
        ({"Either": {}}, "Either: the union Either has 0 members instead of one"),
        ({"Either": {"A": "red", "B": 1}}, "Either: the union Either has 2 members instead of one"),
        ({"Either": "red"}, "Either: 'red' is not a structure (Either)"),
    ],
)
def test_value_that_does_not_fit_is_named_with_its_member(change, mismatch):
    assert found(GOOD | change) == [mismatch]


def test_missing_required_member_is_named():
    assert found({"State": "on"}) == ["Name: required member of Node is missing"]
    assert found([]) == ["the body: [] is not a structure (Node)"]


def test_sensitive_value_is_not_shown():
    assert found(GOOD | {"Secret": 12345}) == ["Secret: the value (not shown) is not a string (Secret)"]


def test_long_value_is_shortened():
    (text,) = found(GOOD | {"State": "x" * 1000})
    assert len(text) < 120


def test_pattern_that_python_cannot_compile_is_skipped():
    shape = ShapeResolver({"Title": {"type": "string", "pattern": r"\p{L}+"}}).get_shape_by_name("Title")
    assert list(find_mismatches(shape, "red")) == []


def test_value_that_ec2_sends_without_listing_it_is_accepted():
    """EC2 reports attached internet gateways as `available`, which its enumeration does not contain."""
    shapes = {"AttachmentStatus": {"type": "string", "enum": ["attached"]}}
    shape = ShapeResolver(shapes).get_shape_by_name("AttachmentStatus")
    assert list(find_mismatches(shape, "available")) == []
    assert [mismatch.path for mismatch in find_mismatches(shape, "usable", "State")] == ["State"]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(value=st.fixed_dictionaries({}, optional=dict.fromkeys(GOOD, ANYTHING)) | ANYTHING)
def test_any_value_is_checked_without_an_exception(value):
    for text in found(value):
        assert text.isascii() or isinstance(value, dict)


@given(
    value=st.fixed_dictionaries(
        {"Name": st.from_regex("[a-z]{2,8}", fullmatch=True)},
        optional={
            "State": st.sampled_from(["on", "off"]),
            "Size": st.integers(1, 10),
            "Names": st.lists(st.from_regex("[a-z]{2,8}", fullmatch=True), max_size=3),
            "Flag": st.booleans(),
        },
    ),
    name=st.sampled_from(["State", "Size", "Flag", "Names"]),
    wrong=st.binary(),
)
def test_exactly_the_changed_member_is_reported(value, name, wrong):
    assert found(value) == []
    (mismatch,) = find_mismatches(NODE, value | {name: wrong})
    assert mismatch.path == name


@given(text=st.text())
def test_string_fits_only_if_size_and_pattern_do(text):
    fits = re.fullmatch("[a-z]{2,8}", text, re.ASCII) is not None
    assert (found({"Name": text}) == []) == fits
