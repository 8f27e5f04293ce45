"""The registry of rules for EC2 actions, the requests passed to the rules, and the errors that the rules raise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moto.ec2.exceptions import EC2ClientError

from cloudgpu import bounds
from cloudgpu.rehearsal.state.records import Records

if TYPE_CHECKING:
    from cloudgpu.rehearsal.aws_api.interfaces import World


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
RULES: dict[str, Rule] = {}


def rule(action: str) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the rule for an EC2 action.

    The function returns the members of the response, or moto's `ActionResult`.
    """

    def register(function: Rule) -> Rule:
        RULES[action] = function
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
