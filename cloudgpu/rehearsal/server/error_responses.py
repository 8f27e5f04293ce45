"""Error responses in each AWS protocol's format and in AWS's wording. XML and JSON serializers escape the messages.

The wordings are those that others recorded: `tests/rehearsal/fidelity/recorded_errors.py` names the source of each.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal
from xml.etree import ElementTree as ET

from botocore.exceptions import UnknownServiceError
from botocore.loaders import Loader

from cloudgpu.rehearsal.server.http_message import HttpResponse

_QUOTED_LIST: Final = re.compile(r"[{\[]('[^{}\[\]]*')[}\]]")
"""Ids as Python prints a set or list of them, which is how moto prints them."""
Protocol = Literal["ec2", "query", "rest-xml", "json", "rest-json"]
PROTOCOLS: Final[dict[str, Protocol]] = {
    "ec2": "ec2",
    "s3": "rest-xml",
    "route53": "rest-xml",
    "cloudfront": "rest-xml",
    "efs": "rest-json",
    "elasticfilesystem": "rest-json",
    "scheduler": "rest-json",
    "lambda": "rest-json",
    "batch": "rest-json",
    "fsx": "json",
    "ssm": "json",
    "dynamodb": "json",
    "tagging": "json",
    "secretsmanager": "json",
    "logs": "json",
    "events": "json",
    "kms": "json",
    "ecr": "json",
    "ecs": "json",
    "servicequotas": "json",
    "pricing": "json",
    "budgets": "json",
}
"""Protocol by service name, as used in request signatures; all other services use `query`."""
_MODELS: Final = {
    "elasticfilesystem": "efs",
    "servicequotas": "service-quotas",
    "tagging": "resourcegroupstaggingapi",
}
"""Name of the service model by service name, where the two differ."""
_REQUEST_ID: Final = "rehearsal"
INVALID_XML_CHARACTER: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow, even when escaped."""
_NO_CODE: Final = re.compile(r"[^A-Za-z0-9_.:#/-]")
_CODE: Final = re.compile(r"<Code>(.*?)</Code>", re.DOTALL)
_MESSAGE: Final = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_ERROR: Final = 400


@dataclass(frozen=True)
class _NotFound:
    """How EC2 reports that resources of one type do not exist; `{}` stands for their ids."""

    prefix: str
    text: str


_NOT_FOUND: Final = {
    "InvalidAllocationID.NotFound": _NotFound("eipalloc", "The allocation ID '{}' does not exist"),
    "InvalidGroup.NotFound": _NotFound("sg", "The security group '{}' does not exist"),
    "InvalidInstanceID.NotFound": _NotFound("i", "The instance ID '{}' does not exist"),
    "InvalidInternetGatewayID.NotFound": _NotFound("igw", "The internetGateway ID '{}' does not exist"),
    "InvalidLaunchTemplateId.NotFound": _NotFound(
        "lt", "The specified launch template, with template ID {}, does not exist."
    ),
    "InvalidNetworkInterfaceID.NotFound": _NotFound("eni", "The networkInterface ID '{}' does not exist"),
    "InvalidRouteTableID.NotFound": _NotFound("rtb", "The routeTable ID '{}' does not exist"),
    "InvalidSnapshot.NotFound": _NotFound("snap", "The snapshot '{}' does not exist."),
    "InvalidSubnetID.NotFound": _NotFound("subnet", "The subnet ID '{}' does not exist"),
    "InvalidVolume.NotFound": _NotFound("vol", "The volume '{}' does not exist."),
    "InvalidVpcEndpointId.NotFound": _NotFound("vpce", "The Vpc Endpoint Id '{}' does not exist"),
    "InvalidVpcID.NotFound": _NotFound("vpc", "The vpc ID '{}' does not exist"),
    "NatGatewayNotFound": _NotFound("nat", "NAT gateway {} was not found"),
}


@dataclass(frozen=True)
class _Wording:
    """A message of moto, and AWS's wording with the groups of the pattern in it."""

    code: str
    moto: re.Pattern[str]
    text: str


def _wordings(*rows: tuple[str, str, str]) -> tuple[_Wording, ...]:
    return tuple(_Wording(code, re.compile(pattern), text) for code, pattern, text in rows)


_WORDINGS: Final = {
    "ec2": _wordings(
        (
            "DependencyViolation",
            r"(igw-\w+) is being utilized by vpc-\w+",
            "The internetGateway '{}' has dependencies and cannot be deleted.",
        ),
        ("DependencyViolation", r"The vpc (vpc-\w+) has dependencies and cannot be deleted\.",
         "The vpc '{}' has dependencies and cannot be deleted."),
        ("InvalidAssociationID.NotFound", r"Association ID '(\S+)' not found\.",
         "The association ID '{}' does not exist"),
        ("InvalidKeyPair.NotFound", r"The keypair '(.+)' does not exist\.", "The key pair '{}' does not exist"),
    ),
    "iam": _wordings(
        ("NoSuchEntity", r"Role (\S+) not found", "The role with name {} cannot be found."),
        ("NoSuchEntity", r"Instance profile (\S+) not found", "Instance Profile {} cannot be found."),
        ("NoSuchEntity", r"Policy (arn:[^:]*:iam::aws:\S+) not found", "Policy {} was not found."),
        ("NoSuchEntity", r"Policy (arn:\S+) not found", "Policy {} does not exist or is not attachable."),
        ("NoSuchEntity", r"Policy (\S+) not found", "The role policy with name {} cannot be found."),
    ),
}  # fmt: skip
"""Wordings by service. The first that matches applies."""


def not_found_message(code: str, ids: Iterable[str]) -> str:
    """Return EC2's message for resources that do not exist.

    Args:
        code: An error code of EC2 that names a type of resource, such as `InvalidVolume.NotFound`.
        ids: The ids that do not exist.
    """
    return _NOT_FOUND[code].text.format(", ".join(ids))


def aws_message(service: str, code: str, message: str) -> str:
    """Return the message as AWS words it."""
    for wording in _WORDINGS.get(service, ()):
        match = wording.moto.fullmatch(message) if wording.code == code else None
        if match is not None:
            return wording.text.format(*match.groups())
    known = _NOT_FOUND.get(code) if service == "ec2" else None
    if known is None:
        return message
    listed = _QUOTED_LIST.search(message)
    ids = re.findall(r"'([^']*)'", listed[1]) if listed else re.findall(rf"\b{known.prefix}-\w+", message)
    # One missing id can be named as AWS does; how AWS lists several is not recorded for every type.
    return known.text.format(ids[0]) if len(ids) == 1 else _QUOTED_LIST.sub(r"\1", message)


def error_response(
    service: str, code: str, message: str, status: int, details: Mapping[str, str] | None = None
) -> HttpResponse:
    """Return an error response in the format that clients of this service expect.

    Args:
        service: The service's name in request signatures.
        code: The error code.
        message: The message.
        status: The HTTP status.
        details: Further members of an error of S3, such as `BucketName`.
    """
    protocol = PROTOCOLS.get(service, "query")
    code = _NO_CODE.sub("_", code)
    if protocol in ("json", "rest-json"):
        content = json.dumps({"__type": code, _message_member(service, code): message}).encode()
        content_type = "application/json" if protocol == "rest-json" else "application/x-amz-json-1.1"
        return HttpResponse(status, {"Content-Type": content_type, "x-amzn-errortype": code}, content)
    root = _XML_FORMS.get(protocol, _query)(service, code, INVALID_XML_CHARACTER.sub("\ufffd", message))
    for name, value in (details or {}).items():
        ET.SubElement(root, name).text = INVALID_XML_CHARACTER.sub("\ufffd", value)
    content = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return HttpResponse(status, {"Content-Type": "text/xml"}, content)


def correct_error(service: str, status: int, headers: dict[str, str], body: bytes) -> HttpResponse:
    """Return moto's response; an error gets AWS's wording, well-formed XML, and the message's name in JSON.

    Moto copies messages into its XML unescaped, and a message may quote the request.
    """
    if status < _ERROR or not body:
        return HttpResponse(status, headers, body)
    if PROTOCOLS.get(service, "query") in ("json", "rest-json"):
        return HttpResponse(status, headers, _correct_json(service, body))
    return _correct_xml(service, HttpResponse(status, headers, body))


def _correct_xml(service: str, response: HttpResponse) -> HttpResponse:
    status, body = response.status, response.body
    try:
        root = ET.fromstring(body)  # noqa: S314 - our own response, which declares no entities
    except (ET.ParseError, ValueError):
        text = body.decode(errors="replace")
        code, found = _CODE.search(text), _MESSAGE.search(text)
        return error_response(service, code[1] if code else "InternalFailure", found[1] if found else text, status)
    code_element, message_element = _find(root, "Code"), _find(root, "Message")
    if code_element is None or message_element is None:
        return response
    message = message_element.text or ""
    worded = aws_message(service, code_element.text or "", message)
    if worded == message:
        return response
    message_element.text = worded
    return HttpResponse(status, response.headers, ET.tostring(root, encoding="utf-8", xml_declaration=True))


def _correct_json(service: str, body: bytes) -> bytes:
    """Give the message of an error the name that the service model has for it; moto always sends `message`."""
    try:
        error = json.loads(body)
    except ValueError:
        return body
    if not isinstance(error, dict) or "message" not in error:
        return body
    name = _message_member(service, str(error.get("__type") or ""))
    return json.dumps({name if key == "message" else key: value for key, value in error.items()}).encode()


def _message_member(service: str, code: str) -> str:
    """Return the name of an error's message in JSON: as in the service model, or `message` if it has no such error."""
    shape = _shapes(_MODELS.get(service, service)).get(code.rpartition("#")[2]) or {}
    members = shape.get("members") or {} if shape.get("exception") else {}
    return next((str(name) for name in members if name.lower() == "message"), "message")


@cache
def _shapes(model: str) -> Mapping[str, Any]:
    try:
        shapes: Mapping[str, Any] = Loader().load_service_model(model, "service-2")["shapes"]
    except UnknownServiceError:
        return {}
    return shapes


def _find(root: ET.Element, name: str) -> ET.Element | None:
    """Return the first element with this name in any namespace."""
    return next((element for element in root.iter() if element.tag.rpartition("}")[2] == name), None)


def _ec2(_: str, code: str, message: str) -> ET.Element:
    root = ET.Element("Response")
    _fill(ET.SubElement(ET.SubElement(root, "Errors"), "Error"), code, message)
    ET.SubElement(root, "RequestID").text = _REQUEST_ID
    return root


def _rest_xml(service: str, code: str, message: str) -> ET.Element:
    if service != "s3":
        return _query(service, code, message)
    root = ET.Element("Error")
    _fill(root, code, message)
    ET.SubElement(root, "RequestId").text = _REQUEST_ID
    return root


def _query(_: str, code: str, message: str) -> ET.Element:
    root = ET.Element("ErrorResponse")
    error = ET.SubElement(root, "Error")
    ET.SubElement(error, "Type").text = "Sender"
    _fill(error, code, message)
    ET.SubElement(root, "RequestId").text = _REQUEST_ID
    return root


def _fill(error: ET.Element, code: str, message: str) -> None:
    ET.SubElement(error, "Code").text = code
    ET.SubElement(error, "Message").text = message


_XML_FORMS: Final = {"ec2": _ec2, "rest-xml": _rest_xml}
