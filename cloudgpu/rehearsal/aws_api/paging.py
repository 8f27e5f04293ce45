"""Apply `MaxResults` and `NextToken` to listings that AWS paginates and moto returns in one response."""

from functools import cache
from typing import Any

from botocore.loaders import Loader
from moto.core.responses import ActionResult

from cloudgpu.rehearsal.aws_api.rules import paginate_rows


@cache
def _listings() -> dict[str, dict[str, Any]]:
    """Return botocore's paginator definitions by action; `result_key` is the response member that contains the list."""
    rows: dict[str, dict[str, Any]] = Loader().load_service_model("ec2", "paginators-1")["pagination"]
    return {
        action: row for action, row in rows.items() if row.get("limit_key") == "MaxResults" and _is_single_list(row)
    }


def _is_single_list(row: dict[str, Any]) -> bool:
    return isinstance(row.get("result_key"), str) and row.get("output_token") == "NextToken"


def paginate_response(action: str, params: dict[str, Any], response: ActionResult) -> ActionResult:
    """Return the requested page of a response.

    The response is returned unchanged if it already has a token, the request does not specify a page, or AWS does not
    paginate the action with `MaxResults`.
    """
    is_paged = params.get("MaxResults") or params.get("NextToken")
    listing = _listings().get(action) if is_paged else None
    members = response.result
    if listing is None or not isinstance(members, dict) or "NextToken" in members:
        return response
    key = str(listing["result_key"])
    rows, token = paginate_rows(list(members.get(key) or []), params)
    return ActionResult({**members, key: rows, "NextToken": token})
