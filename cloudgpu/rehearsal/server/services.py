"""Route a verified request to its simulated service. Importing this module loads moto (about a second)."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from xml.parsers.expat import ExpatError

from botocore.model import OperationNotFoundError
from moto import backend_index, backends
from moto.core.base_backend import BackendDict
from moto.core.exceptions import ServiceException
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.request import Request
from werkzeug.exceptions import HTTPException

from cloudgpu.rehearsal.aws_api import (
    json_service,
    pricing,
    s3_buckets,
    s3_checks,
    service_quotas,
    service_roles,
    ssm_session_manager,
)
from cloudgpu.rehearsal.aws_api.ec2.backend import StrictEc2
from cloudgpu.rehearsal.aws_api.ec2.regions import disabled_region_error
from cloudgpu.rehearsal.aws_api.efs import StrictEfs
from cloudgpu.rehearsal.aws_api.fsx import lustre
from cloudgpu.rehearsal.aws_api.iam_service import StrictIam, StrictSts
from cloudgpu.rehearsal.aws_api.interfaces import World
from cloudgpu.rehearsal.aws_api.scheduler import StrictScheduler
from cloudgpu.rehearsal.aws_api.ssm_parameters import StrictSsm
from cloudgpu.rehearsal.aws_api.ssm_sessions import SsmSessions
from cloudgpu.rehearsal.server.error_responses import correct_error, error_response
from cloudgpu.rehearsal.server.http_message import HttpRequest, HttpResponse
from cloudgpu.rehearsal.server.request_guard import body_error
from cloudgpu.rehearsal.server.response_checks import ResponseChecks
from cloudgpu.rehearsal.server.sigv4 import Scope

_GLOBAL = ("iam", "budgets", "cloudfront", "route53")
_JSON = {"fsx": lustre.ACTIONS, "servicequotas": service_quotas.ACTIONS, "pricing": pricing.ACTIONS}
_MOTO_HANDLERS = {"iam": StrictIam, "scheduler": StrictScheduler, "ssm": StrictSsm, "sts": StrictSts}
"""Handlers that override single actions of moto's handlers."""


class Services:
    """The simulated services of one server."""

    def __init__(self, world: World, sessions: SsmSessions) -> None:
        self._world = world
        self._sessions = sessions
        self._checks = ResponseChecks()

    def answer(self, request: HttpRequest, scope: Scope) -> HttpResponse:
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
            rejection = s3_checks.rejection(request, scope.region)
        if rejection is not None:
            return rejection
        url = _url(request, scope)
        moto_request = Request.from_primitives(request.method, url, dict(request.headers), request.body)
        try:
            with service_roles.listed(self._world.behaviour, scope.service, request.body):
                status, headers, body = self._dispatch_request(moto_request, url, scope)
        except HTTPException as err:
            status, headers, body = err.code or 500, dict(err.get_headers()), err.get_body()
        except (OperationNotFoundError, NotImplementedError, ExpatError, ServiceException) as err:
            return _error_of(scope.service, err)
        if scope.service == "s3":
            s3_buckets.apply_defaults(request, int(status))
        content = body.encode(errors="replace") if isinstance(body, str) else bytes(body)
        return correct_error(scope.service, int(status), _string_headers(headers), content)

    def _dispatch_request(self, request: Request, url: str, scope: Scope) -> Any:  # noqa: ANN401 - moto's triple
        if scope.service == "ec2":
            return StrictEc2(self._world)._dispatch(request, url)
        target = str(request.headers.get("X-Amz-Target") or "")
        actions = self._actions(scope.service, target.rpartition(".")[2])
        if actions is not None:
            return json_service.answer(actions, self._world, scope.region, target, request.data)
        if scope.service == "elasticfilesystem":
            return StrictEfs(self._world.behaviour)._dispatch(request, url, request.headers)
        if scope.service in _MOTO_HANDLERS:
            return _MOTO_HANDLERS[scope.service]()._dispatch(request, url, request.headers)
        for pattern, handler in _routes(scope.service, url):
            if pattern.match(url.partition("?")[0]):
                result = handler(request, url, request.headers)
                return result if len(result) == 3 else (200, {}, result)  # noqa: PLR2004 - status, headers, body
        message = f"service {scope.service}"
        raise NotImplementedError(message)

    def _actions(self, service: str, name: str) -> Mapping[str, json_service.Action] | None:
        """Return the service's table of actions, or None if another handler serves this request."""
        if service == "ssm" and name in ssm_session_manager.ACTIONS:
            return {
                name: lambda _world, region, params: ssm_session_manager.start_session(self._sessions, region, params)
            }
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
