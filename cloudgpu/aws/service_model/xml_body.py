"""Read an XML body by its shape, without dropping anything that the shape does not know."""

import base64
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, Final
from xml.etree.ElementTree import Element

from botocore.model import Shape

from cloudgpu.aws.service_model.timestamps import parse_timestamp
from cloudgpu.aws.service_model.values import unknown_member_name


def read_xml_element(shape: Any, element: Element, *, ignore: Iterable[str] = ()) -> Any:  # noqa: ANN401
    """Return the value of an element with the member names and types of its shape.

    What does not fit the shape is returned as it is, for `find_mismatches` to report: an unknown element under its own
    name, a repeated element as a list, a malformed number as text.

    Args:
        shape: Shape of the element in the service model.
        element: The parsed element.
        ignore: Names of child elements that belong to the protocol, such as the request ID.
    """
    if shape.type_name in ("structure", "list", "map") and not len(element) and (element.text or "").strip():
        return element.text
    if shape.type_name == "structure":
        return _read_structure(shape, element, set(ignore))
    if shape.type_name == "list":
        name = shape.member.serialization.get("name", "member")
        return [_read_entry(shape.member, child, name) for child in element]
    if shape.type_name == "map":
        return _read_map(shape, [child for child in element if element_name(child) == "entry"], element)
    children = [element_name(child) for child in element]  # no scalar has any
    return children or read_text(shape, element.text or "", "iso8601")


def read_text(shape: Shape, text: str, timestamp_format: str) -> Any:  # noqa: ANN401
    """Return the value that a text denotes, or the text itself if it is malformed."""
    if shape.type_name == "timestamp":
        return parse_timestamp(text, shape.serialization.get("timestampFormat", timestamp_format))
    try:
        return _SCALARS.get(shape.type_name, str)(text)
    except (ValueError, KeyError):
        return [text] if shape.type_name == "blob" else text  # a text would pass as a blob


_SCALARS: Final[Mapping[str, Callable[[str], Any]]] = {
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "boolean": {"true": True, "false": False}.__getitem__,
    "blob": partial(base64.b64decode, validate=True),
}


def _read_structure(shape: Any, element: Element, ignore: set[str]) -> Any:  # noqa: ANN401
    names, values = _wire_names(shape), dict[str, Any]()
    children: dict[str, list[Element]] = {}
    for child in element:
        children.setdefault(element_name(child), []).append(child)
    for wire_name, found in children.items():
        member_name = names.get(wire_name)
        if member_name is not None:
            values[member_name] = _read_member(shape.members[member_name], found)
        elif wire_name not in ignore:
            values[unknown_member_name(shape, wire_name)] = None
    for name, member in shape.members.items() if element.attrib else ():
        attribute = _attribute(member, element)
        if attribute is not None:
            values[name] = attribute
    return values


@lru_cache(maxsize=4096)
def _wire_names(shape: Any) -> Mapping[str, str]:  # noqa: ANN401
    """Return the mapping from the names of a structure's child elements to the names of its members."""
    return {
        _wire_name(member, name): name
        for name, member in shape.members.items()
        if not member.serialization.get("xmlAttribute") and "location" not in member.serialization
    }


def _wire_name(member: Any, name: str) -> str:  # noqa: ANN401
    if member.type_name == "list" and member.serialization.get("flattened"):
        return str(member.member.serialization.get("name", member.serialization.get("name", name)))
    return str(member.serialization.get("name", name))


def _attribute(member: Any, element: Element) -> str | None:  # noqa: ANN401
    """Return the value of a member that is sent as an attribute, such as `xsi:type`."""
    if not member.serialization.get("xmlAttribute"):
        return None
    name = str(member.serialization["name"]).rpartition(":")[2]
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), None)


def _read_member(shape: Any, found: list[Element]) -> Any:  # noqa: ANN401
    if shape.serialization.get("flattened"):
        if shape.type_name == "map":
            return _read_map(shape, found, None)
        return [read_xml_element(shape.member, child) for child in found]
    values = [read_xml_element(shape, child) for child in found]
    return values[0] if len(values) == 1 else {"repeated": values}


def _read_entry(shape: Any, child: Element, name: str) -> Any:  # noqa: ANN401
    if element_name(child) != name:
        return {f"<{element_name(child)}> instead of <{name}>": None}
    return read_xml_element(shape, child)


def _read_map(shape: Any, entries: list[Element], parent: Element | None) -> Any:  # noqa: ANN401
    if parent is not None and len(entries) != len(parent):
        return [element_name(child) for child in parent]  # not a map
    key_name = shape.key.serialization.get("name", "key")
    value_name = shape.value.serialization.get("name", "value")
    values = {}
    for entry in entries:
        parts = {element_name(child): child for child in entry}
        if set(parts) != {key_name, value_name}:
            return [sorted(parts)]
        values[read_xml_element(shape.key, parts[key_name])] = read_xml_element(shape.value, parts[value_name])
    return values


def element_name(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]
