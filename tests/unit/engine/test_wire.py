"""Values in Pulumi's wire format, and property paths."""

import pytest
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.engine.direct.operation_choice import parse_property_path, restore_old_values
from cloudgpu.engine.direct.protobuf_values import UNKNOWN, is_unknown, iter_scalars, struct, to_plain
from cloudgpu.errors import BadRequestError

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
PROPERTIES = st.dictionaries(st.text(min_size=1, max_size=4), VALUES, max_size=4)


@given(PROPERTIES)
def test_values_round_trip_through_wire_format(values):
    back = to_plain(struct(values))
    assert back.values == {name: value for name, value in values.items() if value is not None}
    assert back.secret_paths == set()


@given(PROPERTIES)
def test_secrets_are_unwrapped_and_their_paths_recorded(values):
    back = to_plain(struct(values, frozenset(values)))
    assert back.secret_paths == {(name,) for name in values}
    assert back.values == {name: value for name, value in values.items() if value is not None}


def test_integers_stay_integers():
    back = to_plain(struct({"a": 22, "b": 0.5, "c": True})).values
    assert {name: type(value) for name, value in back.items()} == {"a": int, "b": float, "c": bool}


def test_references_outputs_and_unknowns_are_decoded():
    signature = "4dabf18193072939515e22adb298388d"
    message = struct_pb2.Struct()
    message.update(
        {
            "ref": {signature: "5cf8f73096256a8f31e491e813e4eb8e", "urn": "urn:x", "id": "i-1"},
            "component": {signature: "5cf8f73096256a8f31e491e813e4eb8e", "urn": "urn:x"},
            "out": {signature: "d0e6a833031e9bbcd3f4e8bde6ca49a4", "value": 1, "secret": True},
            "unknown_out": {signature: "d0e6a833031e9bbcd3f4e8bde6ca49a4"},
            "unknown_bool": "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",
            "list": [UNKNOWN],
        }
    )
    back = to_plain(message)
    assert back.values["ref"] == "i-1"
    assert back.values["component"] == "urn:x"
    assert back.values["out"] == 1
    assert back.secret_paths == {("out",)}
    assert all(is_unknown(back.values[name]) for name in ("unknown_out", "unknown_bool", "list"))
    assert not is_unknown(back.values["ref"])


@given(PROPERTIES)
def test_scalar_paths_lead_to_their_values(values):
    for path, leaf in iter_scalars(values):
        found = values
        for part in path:
            found = found[part]
        assert found == leaf


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a", ("a",)),
        ("a.b", ("a", "b")),
        ("a[0].b", ("a", 0, "b")),
        ('a["b.c"].d', ("a", "b.c", "d")),
        ('["x"]', ("x",)),
        ("a[*]", ("a", "*")),
        ("*", ("*",)),
        ('a["q\\"q"]', ("a", 'q"q')),
    ],
)
def test_valid_property_paths_are_parsed(text, path):
    assert parse_property_path(text) == path


@pytest.mark.parametrize("text", ["a[", "a]", "[x]", "a..b", '["x'])
def test_invalid_property_paths_are_rejected(text):
    with pytest.raises(BadRequestError):
        parse_property_path(text)


def test_restore_old_values_drops_paths_absent_from_old_value():
    assert restore_old_values({"a": {}}, {"a": {"b": 1}, "c": 2}, ["a.b"]) == {"a": {}, "c": 2}
    assert restore_old_values({"a": [1]}, {"a": [5, 6, 7]}, ["a[*]"]) == {"a": [1]}
    assert restore_old_values({"a": 1}, {}, ["a", "b.c"]) == {"a": 1}


@given(PROPERTIES, PROPERTIES)
def test_ignoring_everything_restores_old_value(old, new):
    assert restore_old_values(old, new, ["*"]) == old


@given(PROPERTIES, PROPERTIES)
def test_restore_old_values_modifies_no_arguments(old, new):
    before = repr((old, new))
    for path in ("a", "a.b", "a[0]", "*", "a[*].b"):
        restore_old_values(old, new, [path])
    assert repr((old, new)) == before
