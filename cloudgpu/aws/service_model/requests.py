"""Compare the requests of a boto3 client with the service models before they are sent."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudgpu.aws.service_model.report import record_mismatches
from cloudgpu.aws.service_model.values import find_mismatches


def check_requests(client: Any, report: Path) -> None:  # noqa: ANN401 - a boto3 client
    """Record every difference between the client's requests and the input shapes of their operations."""

    def check(params: Mapping[str, Any], model: Any, **_: object) -> None:  # noqa: ANN401 - botocore's model
        if model.input_shape is not None:
            mismatches = find_mismatches(model.input_shape, params)
            record_mismatches(report, f"request {model.service_model.service_name} {model.name}", mismatches)

    # Last, because botocore's own handlers complete the parameters: client tokens, encoded user data.
    client.meta.events.register_last("before-parameter-build", check)
