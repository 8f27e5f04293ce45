"""Compare the responses of the simulated services with botocore's service models, if the environment asks for it."""

import logging
import os
from pathlib import Path

from cloudgpu.aws.service_model.report import record_mismatches, report_file
from cloudgpu.aws.service_model.responses import find_response_mismatches
from cloudgpu.rehearsal.server.http_message import HttpRequest, HttpResponse
from cloudgpu.rehearsal.server.model_routing import find_operation
from cloudgpu.rehearsal.server.operation import identify
from cloudgpu.rehearsal.server.sigv4 import Scope

_log = logging.getLogger(__name__)


class ResponseChecks:
    """The checks of one server's responses."""

    def __init__(self) -> None:
        self._report = report_file(os.environ)

    def check(self, request: HttpRequest, scope: Scope, response: HttpResponse) -> None:
        """Record every difference between a response and the output shape of its operation."""
        if self._report is not None:
            self._record(self._report, request, scope, response)

    def _record(self, report: Path, request: HttpRequest, scope: Scope, response: HttpResponse) -> None:
        action = identify(request, scope).action
        operation = find_operation(scope.service, action, request)
        if operation is None:
            return
        mismatches = list(find_response_mismatches(operation, response.status, response.headers, response.body))
        for mismatch in mismatches:
            _log.error("response to %s does not match the service model: %s", operation.name, mismatch)
        record_mismatches(report, f"response {operation.service_model.service_name} {operation.name}", mismatches)
