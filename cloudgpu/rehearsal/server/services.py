"""Route a verified request to its simulated service. Importing this module loads moto (about a second).

If the environment asks for it, responses are compared with botocore's service models.
"""

import functools
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl
from xml.parsers.expat import ExpatError

from botocore.exceptions import UnknownServiceError
from botocore.loaders import Loader
from botocore.model import OperationModel, OperationNotFoundError, ServiceModel
from moto import backend_index, backends
from moto.core.base_backend import BackendDict
from moto.core.exceptions import ServiceException
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.request import Request
from werkzeug.exceptions import HTTPException

from cloudgpu.aws.service_model import record_mismatches, report_file
from cloudgpu.aws.service_model_responses import find_response_mismatches
from cloudgpu.rehearsal.aws_api import dispatch, fsx, iam_service, prices_and_quotas, s3_and_efs, ssm
from cloudgpu.rehearsal.aws_api.ec2.backend import StrictEc2
from cloudgpu.rehearsal.aws_api.ec2.instance_types import disabled_region_error
from cloudgpu.rehearsal.aws_api.iam_service import StrictIam, StrictSts
from cloudgpu.rehearsal.aws_api.interfaces import World
from cloudgpu.rehearsal.aws_api.scheduler import StrictScheduler
from cloudgpu.rehearsal.aws_api.ssm import SsmSessions, StrictSsm
from cloudgpu.rehearsal.server.endpoint import identify
from cloudgpu.rehearsal.server.error_responses import correct_error, error_response
from cloudgpu.rehearsal.server.http_message import HttpRequest, HttpResponse
from cloudgpu.rehearsal.server.http_server import body_error
from cloudgpu.rehearsal.server.sigv4 import Scope

_MODEL_NAMES: Final = {
    "elasticfilesystem": "efs",
    "servicequotas": "service-quotas",
    "tagging": "resourcegroupstaggingapi",
}
"""Service name in request signatures -> name of the service model, where they differ."""
_log = logging.getLogger(__name__)
_GLOBAL = ("iam", "budgets", "cloudfront", "route53")
_JSON = {
    "fsx": fsx.ACTIONS,
    "servicequotas": prices_and_quotas.QUOTA_ACTIONS,
    "pricing": prices_and_quotas.PRICE_ACTIONS,
}
_MOTO_HANDLERS = {"iam": StrictIam, "scheduler": StrictScheduler, "ssm": StrictSsm, "sts": StrictSts}
"""Handlers that override single actions of moto's handlers."""


@dataclass(frozen=True)
class _Route:
    """The HTTP form of an operation in a REST service."""

    method: str
    path: re.Pattern[str]
    query: Mapping[str, str]
    required: tuple[tuple[str, str], ...]
    """Location (`querystring` or `header`) and lower-case name of the members that every request contains."""
    operation: OperationModel

    def matches(self, request: HttpRequest, query: Mapping[str, str]) -> bool:
        if request.method != self.method or not self.path.fullmatch(request.raw_path.rstrip("/") or "/"):
            return False
        if any(query.get(name) != value for name, value in self.query.items()):
            return False
        sent = {"querystring": {name.lower() for name in query}, "header": {name.lower() for name in request.headers}}
        return all(name in sent[location] for location, name in self.required)

    @property
    def precision(self) -> tuple[int, bool]:
        return len(self.query) + len(self.required), not self.operation.deprecated


def find_operation(service: str, action: str, request: HttpRequest) -> OperationModel | None:
    """Return the model of the operation that a request calls, or None if no model describes it.

    Args:
        service: Service name in the request's signature.
        action: Name of the action in the request, for services that name it.
        request: The request, whose method, path, query and headers identify the operation of a REST service.
    """
    model = _service_model(_MODEL_NAMES.get(service, service))
    if model is None:
        return None
    if not model.protocol.startswith("rest-"):
        return model.operation_model(action) if action in model.operation_names else None
    query = dict(parse_qsl(request.raw_query, keep_blank_values=True))
    found = [route for route in _model_routes(model.service_name) if route.matches(request, query)]
    return max(found, key=lambda route: route.precision).operation if found else None


@functools.cache
def _service_model(name: str) -> ServiceModel | None:
    try:
        return ServiceModel(_loader().load_service_model(name, "service-2"), name)
    except UnknownServiceError:
        return None


@functools.cache
def _loader() -> Loader:
    """Return one loader for all services, because each looks into the folders of all services once."""
    return Loader()


@functools.cache
def _model_routes(service: str) -> tuple[_Route, ...]:
    model = _service_model(service)
    return tuple(_route(model.operation_model(name)) for name in model.operation_names) if model else ()


def _route(operation: OperationModel) -> _Route:
    path, _, query = operation.http["requestUri"].partition("?")
    parts = [_path_part(part) for part in re.split(r"(\{[^}]+\})", path.rstrip("/") or "/")]
    literals = dict(parse_qsl(query, keep_blank_values=True))
    return _Route(
        operation.http["method"],
        re.compile("".join(parts)),
        literals,
        tuple(_required(operation.input_shape)),
        operation,
    )


def _path_part(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    return ".+" if part.endswith("+}") else "[^/]+"


def _required(shape: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - botocore's shape, or None
    for name in shape.required_members if shape is not None else ():
        member = shape.members[name]
        if member.serialization.get("location") in ("querystring", "header"):
            yield member.serialization["location"], str(member.serialization.get("name", name)).lower()


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


class ServiceRouter:
    """The routes from requests to the simulated services of one server."""

    def __init__(self, world: World, sessions: SsmSessions) -> None:
        self._world = world
        self._sessions = sessions
        self._checks = ResponseChecks()

    def route(self, request: HttpRequest, scope: Scope) -> HttpResponse:
        """Execute the request. If a service or action is not simulated, the error response contains its name."""
        response = self._execute(request, scope)
        self._checks.check(request, scope, response)
        return response

    def _execute(self, request: HttpRequest, scope: Scope) -> HttpResponse:
        rejection = body_error(request, scope.service)
        disabled = disabled_region_error(scope.service, scope.region)
        if rejection is None and disabled is not None:
            rejection = error_response(scope.service, *disabled)
        if rejection is None and scope.service == "s3":
            rejection = s3_and_efs.rejection(request, scope.region)
        if rejection is not None:
            return rejection
        url = _url(request, scope)
        moto_request = Request.from_primitives(request.method, url, dict(request.headers), request.body)
        try:
            with iam_service.visible_service_roles(self._world.behaviour, scope.service, request.body):
                status, headers, body = self._dispatch_request(moto_request, url, scope)
        except HTTPException as err:
            status, headers, body = err.code or 500, dict(err.get_headers()), err.get_body()
        except (OperationNotFoundError, NotImplementedError, ExpatError, ServiceException) as err:
            return _error_of(scope.service, err)
        if scope.service == "s3":
            s3_and_efs.apply_defaults(request, int(status))
        content = body.encode(errors="replace") if isinstance(body, str) else bytes(body)
        return correct_error(scope.service, int(status), _string_headers(headers), content)

    def _dispatch_request(self, request: Request, url: str, scope: Scope) -> Any:  # noqa: ANN401 - moto's triple
        if scope.service == "ec2":
            return StrictEc2(self._world)._dispatch(request, url)
        target = str(request.headers.get("X-Amz-Target") or "")
        actions = self._actions(scope.service, target.rpartition(".")[2])
        if actions is not None:
            return dispatch.call_json_action(actions, self._world, scope.region, target, request.data)
        if scope.service == "elasticfilesystem":
            return s3_and_efs.StrictEfs(self._world.behaviour)._dispatch(request, url, request.headers)
        if scope.service in _MOTO_HANDLERS:
            return _MOTO_HANDLERS[scope.service]()._dispatch(request, url, request.headers)
        for pattern, handler in _routes(scope.service, url):
            if pattern.match(url.partition("?")[0]):
                result = handler(request, url, request.headers)
                return result if len(result) == 3 else (200, {}, result)  # noqa: PLR2004 - status, headers, body
        message = f"service {scope.service}"
        raise NotImplementedError(message)

    def _actions(self, service: str, name: str) -> Mapping[str, dispatch.Action] | None:
        """Return the service's table of actions, or None if another handler serves this request."""
        if service == "ssm" and name in ssm.ACTIONS:
            return {name: lambda _world, region, params: ssm.start_session(self._sessions, region, params)}
        return _JSON.get(service)


def _url(request: HttpRequest, scope: Scope) -> str:
    """Return the request's URL on AWS, from which moto derives the service and region."""
    host = (
        f"{scope.service}.amazonaws.com"
        if scope.service in _GLOBAL
        else f"{scope.service}.{scope.region}.amazonaws.com"
    )
    return f"https://{host}{request.target}"


def _routes(service: str, url: str) -> list[tuple[re.Pattern[str], Any]]:
    name = next((name for name, pattern in backend_index.backend_url_patterns if pattern.match(url)), None)
    if name is None:
        message = f"service {service}"
        raise NotImplementedError(message)
    return _compiled_routes(name)


@lru_cache(maxsize=64)
def _compiled_routes(name: Any) -> list[tuple[re.Pattern[str], Any]]:  # noqa: ANN401 - moto's literal of names
    table = backends.get_backend(name)
    if isinstance(table, BackendDict):
        account = table[DEFAULT_ACCOUNT_ID]
        backend = account["us-east-1" if "us-east-1" in account else "aws"]
    else:
        backend = table["global"]
    return [(re.compile(url), handler) for url, handler in backend.urls.items()]


def _string_headers(headers: Any) -> dict[str, str]:  # noqa: ANN401 - dict or header object
    return {str(name): str(value) for name, value in dict(headers).items() if str(name).lower() != "status"}


def _error_of(service: str, err: Exception) -> HttpResponse:
    if isinstance(err, ServiceException):
        return error_response(service, err.code, err.message, 400)
    if isinstance(err, NotImplementedError):
        message = f"The rehearsal cloud does not simulate this: {err}"
        return error_response(service, "NotImplemented", message, 501)
    if isinstance(err, ExpatError):
        return error_response(service, "MalformedXML", f"The XML is not well-formed: {err}", 400)
    return error_response(service, "InvalidAction", str(err), 400)
