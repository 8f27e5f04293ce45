"""The filters that each EC2 operation accepts, extracted from botocore's service model by scripts/filter_names.py.

EC2 rejects every other filter: "The filter 'NAME' is invalid" (reported for DescribeInstances in boto/boto3 issue 1299
and for DescribeInstanceStatus in aws/aws-cli issue 7225).
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from cloudgpu.rehearsal.aws_api.rules import AwsError

_TAG = "tag:"
_ANY_TAG = "tag:*"


def reject_unknown_filters(action: str, params: Mapping[str, Any]) -> None:
    """Reject a request with a filter that its operation does not have.

    Operations whose documentation lists no filters are not checked.
    """
    accepted = _accepted_filters().get(action)
    if accepted is None:
        return
    for row in params.get("Filters") or params.get("Filter") or ():
        name = str(row.get("Name")) if row.get("Name") is not None else "null"
        if (_ANY_TAG if name.startswith(_TAG) else name) not in accepted:
            raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")


@cache
def _accepted_filters() -> Mapping[str, frozenset[str]]:
    """Return the names of the accepted filters by operation; `tag:*` stands for `tag:KEY`."""
    table = json.loads(files("cloudgpu.rehearsal.aws_api.ec2").joinpath("filter-names.json").read_text("utf-8"))
    return {operation: frozenset(names) for operation, names in table["operations"].items()}
