"""Compare the HTTP response to a call with the output shape of its operation, in XML and in JSON.

The readers do not drop anything that the shape does not know.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

from botocore.model import OperationModel, Shape

from cloudgpu.aws.service_model import Mismatch, find_mismatches, parse_timestamp, unknown_member_name

_SCALARS: Final[Mapping[str, Callable[[str], Any]]] = {
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "boolean": {"true": True, "false": False}.__getitem__,
    "blob": partial(base64.b64decode, validate=True),
}
_FIRST_ERROR_STATUS: Final = 300
_EC2_ENVELOPE: Final = ("requestId", "return")
"""Elements of EC2's responses that belong to no output shape. `return` is the only content of those without output."""


def read_json_value(shape: Any, value: Any) -> Any:  # noqa: ANN401
    """Return the value with the member names and types of its shape.

    What does not fit the shape is returned as it is, for `find_mismatches` to report. Members that are null count as
    absent, as they do for botocore.
    """
    if shape.type_name == "structure" and isinstance(value, Mapping) and not shape.is_document_type:
        names = {member.serialization.get("name", name): name for name, member in shape.members.items()}
        values = {}
        for key, item in value.items():
            if item is not None and key in names:
                values[names[key]] = read_json_value(shape.members[names[key]], item)
            elif item is not None:
                values[unknown_member_name(shape, key)] = item
        return values
    if shape.type_name == "list" and isinstance(value, list):
        return [read_json_value(shape.member, item) for item in value]
    if shape.type_name == "map" and isinstance(value, Mapping):
        return {key: read_json_value(shape.value, item) for key, item in value.items()}
    return _read_scalar(shape, value)


def _read_scalar(shape: Shape, value: Any) -> Any:  # noqa: ANN401
    if shape.type_name == "timestamp":
        style = shape.serialization.get("timestampFormat", "unixTimestamp")
        if style != "unixTimestamp":
            return parse_timestamp(value, style)
        return value if isinstance(value, bool) or not isinstance(value, int | float) else _from_epoch(value)
    if shape.type_name == "blob":
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError):
            return [value]  # neither text nor bytes, so that it is reported
    return value


def _from_epoch(seconds: float) -> Any:  # noqa: ANN401
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return seconds


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


def find_response_mismatches(
    operation: OperationModel, status: int, headers: Mapping[str, str], body: bytes
) -> Iterator[Mismatch]:
    """Yield every difference between a successful response and the output shape of its operation.

    Error responses are not checked: most services have no shape for them.
    """
    if status >= _FIRST_ERROR_STATUS:
        return
    shape: Any = operation.output_shape
    try:
        value = {} if operation.http.get("method") == "HEAD" else _read_body(operation, body)
    except (ValueError, ET.ParseError) as err:
        yield Mismatch("", f"malformed {operation.service_model.protocol} body: {err}")
        return
    if shape is None:
        yield from (Mismatch(name, f"{operation.name} has no output") for name in value)
        return
    yield from find_mismatches(shape, value | _read_header_members(shape, status, headers))


def _read_body(operation: OperationModel, body: bytes) -> dict[str, Any]:
    shape: Any = operation.output_shape
    payload = shape.serialization.get("payload") if shape is not None else None
    if payload is None:
        return _READERS[operation.service_model.protocol](operation, body)
    member = shape.members[payload]
    if member.type_name in ("blob", "string"):
        return {payload: body if member.type_name == "blob" else body.decode()}
    if member.serialization.get("eventstream") or not body.strip():
        return {}
    if operation.service_model.protocol == "rest-xml":
        return {payload: read_xml_element(member, _parse_xml(body))}
    return {payload: read_json_value(member, json.loads(body))}


def _read_ec2(operation: OperationModel, body: bytes) -> dict[str, Any]:
    root = _parse_xml(body, f"{operation.name}Response")
    if operation.output_shape is None:
        return {element_name(child): None for child in root if element_name(child) not in _EC2_ENVELOPE}
    return _members(read_xml_element(operation.output_shape, root, ignore=_EC2_ENVELOPE))


def _read_query(operation: OperationModel, body: bytes) -> dict[str, Any]:
    root = _parse_xml(body, f"{operation.name}Response")
    shape = operation.output_shape
    result_name = shape.serialization.get("resultWrapper", "") if shape is not None else f"{operation.name}Result"
    values: dict[str, Any] = {}
    for child in root:
        if element_name(child) == result_name and shape is not None:
            values |= _members(read_xml_element(shape, child))
        elif element_name(child) not in ("ResponseMetadata", result_name):
            values[element_name(child)] = None
    return values


def _read_rest_xml(operation: OperationModel, body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    root = _parse_xml(body)
    if operation.name == "GetBucketLocation":  # its body is the only member, not a structure that contains it
        return {"LocationConstraint": root.text} if root.text else {}
    if operation.output_shape is None:
        return {element_name(root): None}
    return _members(read_xml_element(operation.output_shape, root))


def _read_json(operation: OperationModel, body: bytes) -> dict[str, Any]:
    value = json.loads(body or b"{}")
    shape = operation.output_shape
    return _members(value if shape is None else read_json_value(shape, value))


_READERS: Final[Mapping[str, Callable[[OperationModel, bytes], dict[str, Any]]]] = {
    "ec2": _read_ec2,
    "query": _read_query,
    "rest-xml": _read_rest_xml,
    "json": _read_json,
    "rest-json": _read_json,
}


def _read_header_members(shape: Any, status: int, headers: Mapping[str, str]) -> dict[str, Any]:  # noqa: ANN401
    """Return the members that are sent as headers or as the HTTP status; a member is absent if its header is."""
    sent = {name.lower(): value for name, value in headers.items()}
    values: dict[str, Any] = {}
    for name, member in shape.members.items():
        location, key = member.serialization.get("location"), str(member.serialization.get("name", name)).lower()
        if location == "header" and key in sent:
            values[name] = read_text(member, sent[key], "rfc822")
        elif location == "headers":
            values[name] = {field.removeprefix(key): sent[field] for field in sent if field.startswith(key)}
        elif location == "statusCode":
            values[name] = status
    return values


def _parse_xml(body: bytes, expected_name: str = "") -> ET.Element:
    root = ET.fromstring(body)  # noqa: S314 - a response of our own cloud, which declares no entities
    if expected_name and element_name(root) != expected_name:
        message = f"the root element is {element_name(root)}, not {expected_name}"
        raise ValueError(message)
    return root


def _members(value: Any) -> dict[str, Any]:  # noqa: ANN401
    if not isinstance(value, dict):
        message = "the body has no members"
        raise ValueError(message)  # noqa: TRY004 - the body is malformed, not an argument
    return value
