"""One EC2 call as the rules see it, the table of rules, and the error they raise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moto.ec2.exceptions import EC2ClientError

from cloudgpu import bounds
from cloudgpu.rehearsal.state.records import Records

if TYPE_CHECKING:
    from cloudgpu.rehearsal.aws_api.world import World


class AwsError(EC2ClientError):
    """An error answer with AWS's own code."""

    def __init__(self, code: str, message: str, *, http: int = 400) -> None:
        super().__init__(code, message)
        self.http = http


@dataclass(frozen=True)
class Call:
    """A parsed EC2 request. `params` has the names of the API reference and plain Python values."""

    action: str
    params: dict[str, Any]
    region: str
    backend: Any
    records: Records
    world: "World"
    proceed: Callable[[], Any]
    """Run moto's own implementation; raises its errors."""

    def texts(self, name: str) -> list[str]:
        """A list parameter."""
        return [str(value) for value in self.params.get(name) or []]

    def filters(self) -> dict[str, list[str]]:
        """The `Filters` parameter."""
        rows = self.params.get("Filters") or []
        return {row["Name"]: [str(value) for value in row.get("Values", [])] for row in rows}

    def tags_for(self, resource_type: str) -> dict[str, str]:
        """Tags that `TagSpecifications` gives to this type."""
        return tags_for(self.params.get("TagSpecifications"), resource_type)


Rule = Callable[[Call], Any]
RULES: dict[str, Rule] = {}


def rule(action: str) -> Callable[[Rule], Rule]:
    """Register a function as the strict implementation of an EC2 action; it returns the answer's members."""

    def register(function: Rule) -> Rule:
        RULES[action] = function
        return function

    return register


def tags_for(specifications: Any, resource_type: str) -> dict[str, str]:  # noqa: ANN401 - wire data
    """Tags that a list of tag specifications gives to one resource type."""
    return {
        tag["Key"]: tag.get("Value", "")
        for row in specifications or []
        if row.get("ResourceType") == resource_type
        for tag in row.get("Tags") or []
    }


def tag_list(tags: dict[str, str]) -> list[dict[str, str]]:
    """Tags in the shape of an answer."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def page(rows: list[Any], params: dict[str, Any], *, limit: int = 1000) -> tuple[list[Any], str | None]:
    """One page of a listing and the token of the next one.

    Raises:
        AwsError: The token is not one that a listing gave.
    """
    text = str(params.get("NextToken") or "0")
    try:
        start = bounds.whole(text)
    except ValueError:
        raise AwsError("InvalidParameterValue", f"Unable to parse pagination token: {text}") from None
    size = int(params.get("MaxResults") or limit)
    following = str(start + size) if start + size < len(rows) else None
    return rows[start : start + size], following
