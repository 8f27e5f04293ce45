"""Dispatch EC2 actions to rules, and the actions of JSON services that moto lacks to functions."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moto.ec2.exceptions import EC2ClientError

from cloudgpu import bounds
from cloudgpu.decoding import decode_as
from cloudgpu.files import parse_json
from cloudgpu.rehearsal.aws_api.interfaces import World
from cloudgpu.rehearsal.aws_api.records import Records

_MAX_PAGE_SIZE = 1000
Action = Callable[[World, str, Mapping[str, Any]], dict[str, Any]]
"""Function that takes the `World`, the region and the call's parameters, and returns the response's members."""
_HEADERS = {"Content-Type": "application/x-amz-json-1.1"}


class JsonError(Exception):
    """An error response of a JSON service."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def call_json_action(actions: Mapping[str, Action], world: World, region: str, target: str, body: bytes) -> Any:  # noqa: ANN401
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


class AwsError(EC2ClientError):
    """An error response with an AWS error code."""

    def __init__(self, code: str, message: str, *, http: int = 400) -> None:
        super().__init__(code, message)
        self.http = http


@dataclass(frozen=True)
class ParsedRequest:
    """A parsed EC2 request; `params` uses the parameter names of the API reference and plain Python values."""

    action: str
    params: dict[str, Any]
    region: str
    backend: Any
    records: Records
    world: "World"
    proceed: Callable[[], Any]
    """Function that runs moto's implementation of the action."""

    def texts(self, name: str) -> list[str]:
        """Return a list parameter as strings."""
        return [str(value) for value in self.params.get(name) or []]

    def filters(self) -> dict[str, list[str]]:
        """Return the `Filters` parameter as a mapping."""
        rows = self.params.get("Filters") or []
        return {row["Name"]: [str(value) for value in row.get("Values", [])] for row in rows}

    def tags_for(self, resource_type: str) -> dict[str, str]:
        """Return the tags that `TagSpecifications` assigns to this resource type."""
        return tags_for(self.params.get("TagSpecifications"), resource_type)


Rule = Callable[[ParsedRequest], Any]


class Rules(dict[str, Rule]):
    """The rules of one module, by EC2 action. `ec2/backend.py` lists the modules."""

    def action(self, name: str) -> Callable[[Rule], Rule]:
        """Return a decorator that makes a function the rule for an EC2 action.

        The function returns the members of the response, or moto's `ActionResult`.
        """

        def register(function: Rule) -> Rule:
            self[name] = function
            return function

        return register


def tags_for(specifications: Any, resource_type: str) -> dict[str, str]:  # noqa: ANN401 - wire data
    """Return the tags that a list of tag specifications assigns to one resource type."""
    return {
        tag["Key"]: tag.get("Value", "")
        for row in specifications or []
        if row.get("ResourceType") == resource_type
        for tag in row.get("Tags") or []
    }


def tag_list(tags: dict[str, str]) -> list[dict[str, str]]:
    """Return tags as a list of keys and values, the form that responses use."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def paginate_rows(rows: list[Any], params: dict[str, Any], *, limit: int = 1000) -> tuple[list[Any], str | None]:
    """Return one page of a listing and the token of the next page, or None on the last page."""
    text = str(params.get("NextToken") or "0")
    try:
        start = bounds.parse_whole_number(text)
    except ValueError:
        raise AwsError("InvalidParameterValue", f"Unable to parse pagination token: {text}") from None
    size = int(params.get("MaxResults") or limit)
    following = str(start + size) if start + size < len(rows) else None
    return rows[start : start + size], following
