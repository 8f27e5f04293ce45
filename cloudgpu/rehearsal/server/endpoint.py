"""Process a request: guard, control call, signature, faults before, service, save, faults after, response."""

import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Protocol

from cloudgpu.clock import Clock
from cloudgpu.errors import CloudGpuError
from cloudgpu.rehearsal.faults.api_faults import FaultRule, FaultRules, MatchedCall, Phase
from cloudgpu.rehearsal.server import aws_chunked
from cloudgpu.rehearsal.server.access_keys import Keyring
from cloudgpu.rehearsal.server.control import PREFIX, ControlApi
from cloudgpu.rehearsal.server.error_responses import error_response
from cloudgpu.rehearsal.server.http_message import DropConnectionError, HttpRequest, HttpResponse
from cloudgpu.rehearsal.server.operation import identify
from cloudgpu.rehearsal.server.sigv4 import Scope, SignatureError, verify, verify_head
from cloudgpu.rehearsal.state.durable import NotSavedError

_log = logging.getLogger(__name__)


class SimulatedServices(Protocol):
    """The simulated services and their state."""

    def answer(self, request: HttpRequest, scope: Scope, *, lag_s: float) -> HttpResponse:
        """Carry out a verified request; tag searches lag by `lag_s` seconds."""

    def admit(self, *, frees: bool) -> None:
        """Reject a change up front if the disk is full, unless it frees resources."""

    def save(self, *, mutated: bool) -> None:
        """Make the effect of a call durable, or undo it."""


@dataclass
class EndpointApplication:
    """Request handling of one server; an `Application` for the HTTP server.

    Attributes:
        cloud: Returns the services once they are loaded; raises CloudGpuError if loading failed.
        touched: Called for every request from a client.
    """

    port: int
    keyring: Keyring
    control: ControlApi
    faults: FaultRules
    lock: RLock
    clock: Clock
    cloud: Callable[[], SimulatedServices]
    touched: Callable[[], None]

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Return the response to one request."""
        refused = refusal(request, self.port)
        if refused is not None:
            return refused
        if request.raw_path.startswith(PREFIX):
            return self.control.answer(request)
        try:
            scope = verify(request, self.keyring.secret_of, self.clock.now())
            request = aws_chunked.plain(request) if aws_chunked.is_streaming(request) else request
        except SignatureError as err:
            return error_response(_service_of(request), err.code, err.message, 403)
        except ValueError as err:
            return error_response("s3", "InvalidRequest", str(err), 400)
        self.touched()
        return self._carry_out(request, scope, identify(request, scope))

    def guard(self, request: HttpRequest) -> HttpResponse | None:
        """Reject a large body that is not signed with a key of this home."""
        refused = refusal(request, self.port)
        if refused is not None or request.raw_path.startswith(PREFIX):
            return refused or HttpResponse(413, {"Content-Type": "text/plain"}, b"the request body is too large")
        try:
            verify_head(request, self.keyring.secret_of, self.clock.now())
        except SignatureError as err:
            status = 413 if err.code == "RequestEntityTooLarge" else 403
            return error_response(_service_of(request), err.code, err.message, status)
        return None

    def _carry_out(self, request: HttpRequest, scope: Scope, call: MatchedCall) -> HttpResponse:
        struck = self._apply_fault(call, "before")
        if struck is not None:
            return struck
        try:
            answer = self._effect(request, scope, call)
        except NotSavedError as err:
            _log.error("%s refused: %s", call.action, err.message)
            # A client error: SDKs retry server errors on their own, and the disk is still full a second later.
            return error_response(call.service, "InsufficientStorage", f"{err.message}; {err.hint}", 400)
        except CloudGpuError as err:
            _log.exception("%s failed", call.action)
            return error_response(call.service, "InternalFailure", err.message, 500)
        # In the format of the service: a client that cannot parse a response reports a network error.
        except Exception as err:  # noqa: BLE001 - moto may raise anything for a request it does not expect
            _log.exception("%s failed", call.action)
            message = f"bug in the rehearsal cloud ({type(err).__name__}): see its server.log"
            return error_response(call.service, "InternalFailure", message, 500)
        struck = self._apply_fault(call, "after_effect")
        return answer if struck is None else struck

    def _effect(self, request: HttpRequest, scope: Scope, call: MatchedCall) -> HttpResponse:
        """Carry out the call and make it durable before the client gets a response."""
        cloud = self.cloud()
        lag_s = self.faults.lag_s(call)
        with self.lock:
            started = time.monotonic()
            if call.mutating:
                cloud.admit(frees=call.frees)
            answer = cloud.answer(request, scope, lag_s=lag_s)
            cloud.save(mutated=call.mutating)
        took_ms = (time.monotonic() - started) * 1000
        _log.info("%s %s %s -> %d in %.0f ms", call.service, call.action, call.region, answer.status, took_ms)
        return answer

    def _apply_fault(self, call: MatchedCall, phase: Phase) -> HttpResponse | None:
        rule = self.faults.find(call, phase)
        if rule is None:
            return None
        _log.info("fault %s applies to %s (%s)", rule.id, call.action, phase)
        return self._fault(rule, call)

    def _fault(self, rule: FaultRule, call: MatchedCall) -> HttpResponse | None:
        if rule.do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if rule.do == "delay":
            self.clock.sleep(rule.seconds)
        if rule.do == "hold":
            self.faults.hold(rule, call)
        if rule.do == "drop" or (rule.do == "hold" and rule.drop):
            raise DropConnectionError
        if rule.do == "error":
            return error_response(call.service, rule.code, rule.message, rule.http)
        return None


def _service_of(request: HttpRequest) -> str:
    """Return the service that an unverified request names, so that the error has its format."""
    scope = request.headers.find("authorization").partition("Credential=")[2].partition(",")[0].split("/")
    if len(scope) == 5:  # noqa: PLR2004 - id, date, region, service, terminator
        return scope[3]
    return "ssm" if request.headers.find("x-amz-target") else "s3"


def refusal(request: HttpRequest, port: int) -> HttpResponse | None:
    """Return an error response for a request that does not come from a client of this endpoint, else None."""
    if request.headers.find("origin"):
        return _refuse("requests from web pages are not allowed")
    host = request.headers.find("host").lower()
    if host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
        return _refuse("this endpoint serves 127.0.0.1 only")
    return None


def _refuse(why: str) -> HttpResponse:
    return HttpResponse(403, {"Content-Type": "text/plain"}, why.encode())
