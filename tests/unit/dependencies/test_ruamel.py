"""The parts of ruamel.yaml that recipes rely on: events, nodes with tags and marks, and errors with marks."""

import io

import pytest
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode


def reader() -> YAML:
    return YAML(typ="safe", pure=True)


def test_parser_events_have_the_expected_names_and_marks() -> None:
    events = list(reader().parse("a: &x [1]\nb: *x\nc: !odd 2\n"))
    names = [type(one).__name__ for one in events]
    assert {"MappingStartEvent", "MappingEndEvent", "SequenceStartEvent", "SequenceEndEvent", "AliasEvent"} <= set(
        names
    )
    (tagged,) = [one for one in events if getattr(one, "ctag", None) is not None]
    assert (str(tagged.ctag), tagged.start_mark.line) == ("!odd", 2)


def test_yaml_version_directive_appears_in_the_events() -> None:
    assert (1, 1) in [getattr(one, "version", None) for one in reader().parse("%YAML 1.1\n---\na: 1\n")]


@pytest.mark.parametrize(
    ("text", "kind"),
    [("1", "int"), ("1.5", "float"), ("true", "bool"), ("~", "null"), ("x", "str"), ("yes", "str"), ("010", "int")],
)
def test_scalar_is_resolved_as_yaml_1_2_with_its_text(text: str, kind: str) -> None:
    node = reader().compose(f"a: {text}")
    assert isinstance(node, MappingNode)
    ((key, value),) = node.value
    assert isinstance(value, ScalarNode)
    assert (key.value, value.value, str(value.tag)) == ("a", text, f"tag:yaml.org,2002:{kind}")


def test_nodes_have_line_numbers_and_merge_keys_a_tag() -> None:
    node = reader().compose("a:\n  - 1\n<<: {}\n")
    (_, items), (merge, _) = node.value
    assert isinstance(items, SequenceNode)
    assert [one.start_mark.line for one in items.value] == [1]
    assert str(merge.tag) == "tag:yaml.org,2002:merge"


def test_yaml_errors_have_marks_or_the_base_class() -> None:
    with pytest.raises(MarkedYAMLError) as caught:
        reader().compose("a: [1\nb")
    assert (caught.value.problem_mark or caught.value.context_mark).line >= 0
    with pytest.raises(YAMLError):
        reader().compose("a: \x01")


def test_round_trip_dump_keeps_order_and_configured_indentation() -> None:
    yaml, text = YAML(typ="rt"), io.StringIO()
    yaml.width, yaml.default_flow_style = 10_000, False
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump({"b": ["x " * 100], "a": {"c": 1}}, text)
    assert text.getvalue() == "b:\n  - " + "'" + "x " * 100 + "'\na:\n  c: 1\n"
