"""Dispatcher for JSON services that moto lacks: each service is a table with one function per action."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from cloudgpu import bounds
from cloudgpu.decoding import decode_as
from cloudgpu.files import parse_json
from cloudgpu.rehearsal.aws_api.interfaces import World

_MAX_PAGE_SIZE = 1000
Action = Callable[[World, str, Mapping[str, Any]], dict[str, Any]]
"""Function that takes the `World`, the region and the call's parameters, and returns the response's members."""


class JsonError(Exception):
    """An error response of a JSON service."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def answer(actions: Mapping[str, Action], world: World, region: str, target: str, body: bytes) -> Any:  # noqa: ANN401
    """Execute the action named by `target`, the `X-Amz-Target` header. Return the status, headers and body."""
    name = target.rpartition(".")[2]
    implementation = actions.get(name)
    if implementation is None:
        return _error_response(JsonError("UnknownOperationException", f"The rehearsal cloud does not simulate {name}."))
    try:
        return 200, _HEADERS, json.dumps(implementation(world, region, _parameters(body)))
    except JsonError as err:
        return _error_response(err)


def paginate(rows: list[Any], params: Mapping[str, Any], *, limit: int = 100) -> tuple[list[Any], dict[str, str]]:
    """Return one page of a listing, and a mapping that contains `NextToken` unless this is the last page."""
    text = str(params.get("NextToken") or "0")
    try:
        start = bounds.parse_whole_number(text)
    except ValueError:
        raise JsonError("InvalidPaginationTokenException", "Invalid pagination token.") from None
    page_size = params.get("MaxResults")
    if page_size is not None and (not isinstance(page_size, int) or not 0 < page_size <= _MAX_PAGE_SIZE):
        raise JsonError("ValidationException", "MaxResults must be a number from 1 to 1000.")
    size = page_size or limit
    more = {"NextToken": str(start + size)} if start + size < len(rows) else {}
    return rows[start : start + size], more


def _parameters(body: bytes) -> dict[str, Any]:
    try:
        return decode_as(dict[str, Any], parse_json(body or b"{}"))
    except ValueError as err:
        raise JsonError("SerializationException", str(err)) from err


def _error_response(err: JsonError) -> tuple[int, dict[str, str], str]:
    body = json.dumps({"__type": err.code, "message": err.message})
    return 400, {**_HEADERS, "x-amzn-errortype": err.code}, body


_HEADERS = {"Content-Type": "application/x-amz-json-1.1"}
