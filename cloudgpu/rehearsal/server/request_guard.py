"""Refuse what AWS refuses before it carries a request out, and what would leave answers that no client can read."""

import re
from collections import Counter
from typing import Final
from urllib.parse import parse_qsl

from cloudgpu.files import parse_json
from cloudgpu.rehearsal.server.error_responses import NO_XML, PROTOCOLS, error_answer
from cloudgpu.rehearsal.server.http_message import HttpRequest, HttpResponse

MAX_TAGS: Final = 50
"""On one resource, as on AWS."""
_MAX_FIELDS: Final = 20_000
_TAG_KEY: Final = re.compile(r"((?:.*\.)?Tag)\.\d+\.Key")


def body_refusal(request: HttpRequest, service: str) -> HttpResponse | None:
    """Return an error for a body that is refused, else None."""
    protocol = PROTOCOLS.get(service, "query")
    if protocol in ("json", "rest-json"):
        return _json_refusal(request.body, service)
    return None if protocol == "rest-xml" else _form_refusal(request, service)


def _json_refusal(body: bytes, service: str) -> HttpResponse | None:
    try:
        found = parse_json(body or b"{}")
    except ValueError as err:
        return error_answer(service, "SerializationException", f"The body is not JSON: {err}", 400)
    if not isinstance(found, dict):
        return error_answer(service, "SerializationException", "The body is not a JSON object.", 400)
    return None


def _form_refusal(request: HttpRequest, service: str) -> HttpResponse | None:
    try:
        text = request.body.decode("utf-8", "replace") or request.raw_query
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        message = f"The request holds more than {_MAX_FIELDS} parameters."
        return error_answer(service, "MalformedQueryString", message, 400)
    for name, value in fields:
        # Stored, and shown in every description from then on, it would make each of those unreadable.
        if NO_XML.search(name) or NO_XML.search(value):
            message = f"The parameter {name[:100]!a} holds a character that is not allowed."
            return error_answer(service, "InvalidParameterValue", message, 400)
    tags = Counter(found[1] for name, _ in fields if (found := _TAG_KEY.fullmatch(name)))
    if any(count > MAX_TAGS for count in tags.values()):
        message = f"The maximum number of tags for a resource, {MAX_TAGS}, is exceeded."
        return error_answer(service, "TagLimitExceeded", message, 400)
    return None
