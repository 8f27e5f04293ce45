"""Reject requests that AWS rejects before executing them, and requests whose response no client could parse."""

import re
from collections import Counter
from typing import Final
from urllib.parse import parse_qsl

from cloudgpu.files import parse_json
from cloudgpu.rehearsal.server.error_responses import INVALID_XML_CHARACTER, PROTOCOLS, error_response
from cloudgpu.rehearsal.server.http_message import HttpRequest, HttpResponse

MAX_TAGS: Final = 50
"""Maximum number of tags on a resource, as on AWS."""
_MAX_FIELDS: Final = 20_000
_TAG_KEY: Final = re.compile(r"((?:.*\.)?Tag)\.\d+\.Key")


def body_error(request: HttpRequest, service: str) -> HttpResponse | None:
    """Return an error for an invalid body, or None if the body is valid."""
    protocol = PROTOCOLS.get(service, "query")
    if protocol in ("json", "rest-json"):
        return _json_error(request.body, service)
    return None if protocol == "rest-xml" else _form_error(request, service)


def _json_error(body: bytes, service: str) -> HttpResponse | None:
    try:
        body_value = parse_json(body or b"{}")
    except ValueError as err:
        return error_response(service, "SerializationException", f"The body is not JSON: {err}", 400)
    if not isinstance(body_value, dict):
        return error_response(service, "SerializationException", "The body is not a JSON object.", 400)
    return None


def _form_error(request: HttpRequest, service: str) -> HttpResponse | None:
    try:
        text = request.body.decode("utf-8", "replace") or request.raw_query
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        message = f"The request contains more than {_MAX_FIELDS} parameters."
        return error_response(service, "MalformedQueryString", message, 400)
    for name, value in fields:
        # If the value were stored, clients could not parse any later response that contains it.
        if INVALID_XML_CHARACTER.search(name) or INVALID_XML_CHARACTER.search(value):
            message = f"The parameter {name[:100]!a} contains a character that is not allowed."
            return error_response(service, "InvalidParameterValue", message, 400)
    tags = Counter(match[1] for name, _ in fields if (match := _TAG_KEY.fullmatch(name)))
    if any(count > MAX_TAGS for count in tags.values()):
        message = f"The maximum number of tags for a resource, {MAX_TAGS}, is exceeded."
        return error_response(service, "TagLimitExceeded", message, 400)
    return None
