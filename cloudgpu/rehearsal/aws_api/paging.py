"""Apply `MaxResults` and `NextToken` to listings that AWS pages and moto returns as a whole."""

from functools import cache
from typing import Any

from botocore.loaders import Loader
from moto.core.responses import ActionResult

from cloudgpu.rehearsal.aws_api.rules import page


@cache
def _listings() -> dict[str, dict[str, Any]]:
    """Return botocore's paginator of each action, which names the list in the response."""
    rows: dict[str, dict[str, Any]] = Loader().load_service_model("ec2", "paginators-1")["pagination"]
    return {action: row for action, row in rows.items() if row.get("limit_key") == "MaxResults" and _one_list(row)}


def _one_list(row: dict[str, Any]) -> bool:
    return isinstance(row.get("result_key"), str) and row.get("output_token") == "NextToken"


def paged(action: str, params: dict[str, Any], answer: ActionResult) -> ActionResult:
    """Return the requested page. A response with its own token, or without a page size, is returned unchanged.

    Raises:
        AwsError: The token does not come from a listing.
    """
    is_paged = params.get("MaxResults") or params.get("NextToken")
    listing = _listings().get(action) if is_paged else None
    members = answer.result
    if listing is None or not isinstance(members, dict) or "NextToken" in members:
        return answer
    key = str(listing["result_key"])
    rows, token = page(list(members.get(key) or []), params)
    return ActionResult({**members, key: rows, "NextToken": token})
