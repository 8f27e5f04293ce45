"""Compare the HTTP response to a call with the output shape of its operation."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from xml.etree import ElementTree as ET

from botocore.model import OperationModel

from cloudgpu.aws.service_model.json_body import read_json_value
from cloudgpu.aws.service_model.values import Mismatch, find_mismatches
from cloudgpu.aws.service_model.xml_body import element_name, read_text, read_xml_element

_FIRST_ERROR_STATUS: Final = 300
_EC2_ENVELOPE: Final = ("requestId", "return")
"""Elements of EC2's responses that belong to no output shape. `return` is the only content of those without output."""


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
