"""Error responses in each AWS protocol's format. XML and JSON serializers escape the messages."""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Literal
from xml.etree import ElementTree as ET

from botocore.exceptions import UnknownServiceError
from botocore.loaders import Loader

from cloudgpu.rehearsal.server.error_wording import aws_message
from cloudgpu.rehearsal.server.http_message import HttpResponse

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
