"""JSON services that moto lacks: one function per action, one table per service."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from cloudgpu import bounds
from cloudgpu.decoding import decoded
from cloudgpu.files import parse_json
from cloudgpu.rehearsal.aws_api.interfaces import World

_MOST = 1000
Action = Callable[[World, str, Mapping[str, Any]], dict[str, Any]]
"""Maps world, region and parameters to the members of the response."""


class JsonError(Exception):
    """An error response of a JSON service."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def answer(actions: Mapping[str, Action], world: World, region: str, target: str, body: bytes) -> Any:  # noqa: ANN401
    """Return status, headers and body of one call; `target` is its `X-Amz-Target` header."""
    name = target.rpartition(".")[2]
    work = actions.get(name)
    if work is None:
        return _refused(JsonError("UnknownOperationException", f"The rehearsal cloud does not simulate {name}."))
    try:
        return 200, _HEADERS, json.dumps(work(world, region, _parameters(body)))
    except JsonError as err:
        return _refused(err)


def paged(rows: list[Any], params: Mapping[str, Any], *, limit: int = 100) -> tuple[list[Any], dict[str, str]]:
    """Return one page of a listing, and the members that point to the next page.

    Raises:
        JsonError: The token does not come from a listing.
    """
    text = str(params.get("NextToken") or "0")
    try:
        start = bounds.whole(text)
    except ValueError:
        raise JsonError("InvalidPaginationTokenException", "Invalid pagination token.") from None
    wanted = params.get("MaxResults")
    if wanted is not None and (not isinstance(wanted, int) or not 0 < wanted <= _MOST):
        raise JsonError("ValidationException", "MaxResults must be a number from 1 to 1000.")
    size = wanted or limit
    more = {"NextToken": str(start + size)} if start + size < len(rows) else {}
    return rows[start : start + size], more


def _parameters(body: bytes) -> dict[str, Any]:
    try:
        return decoded(dict[str, Any], parse_json(body or b"{}"))
    except ValueError as err:
        raise JsonError("SerializationException", str(err)) from err


def _refused(err: JsonError) -> tuple[int, dict[str, str], str]:
    body = json.dumps({"__type": err.code, "message": err.message})
    return 400, {**_HEADERS, "x-amzn-errortype": err.code}, body


_HEADERS = {"Content-Type": "application/x-amz-json-1.1"}
