"""The way of one request: guard, control, signature, faults, service, disk, faults, answer."""

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
from cloudgpu.rehearsal.faults.api_faults import ApiCall, FaultRule, FaultRules, Phase
from cloudgpu.rehearsal.server import aws_chunked
from cloudgpu.rehearsal.server.access_keys import Keyring
from cloudgpu.rehearsal.server.control import PREFIX, Control
from cloudgpu.rehearsal.server.error_responses import error_answer
from cloudgpu.rehearsal.server.http_guard import refusal
from cloudgpu.rehearsal.server.http_message import DropConnectionError, HttpRequest, HttpResponse
from cloudgpu.rehearsal.server.operation import identify
from cloudgpu.rehearsal.server.sigv4 import Scope, SignatureError, verify, verify_head
from cloudgpu.rehearsal.state.durable import NotSavedError

_log = logging.getLogger(__name__)


class Cloud(Protocol):
    """The simulated services and their state."""

    def answer(self, request: HttpRequest, scope: Scope, *, lag_s: float) -> HttpResponse:
        """Carry a verified request out; searches by tag are behind by `lag_s`."""

    def admit(self, *, frees: bool) -> None:
        """Refuse what changes something before it has an effect, where the disk is full."""

    def save(self, *, mutated: bool) -> None:
        """Make its effect durable, or take it back."""


@dataclass
class Endpoint:
    """One server's request handling; an `Application` for the HTTP server.

    Attributes:
        cloud: Returns the services, waiting for them to be loaded; raises CloudGpuError when they cannot be.
        touched: Called for every request that came from a client.
    """

    port: int
    keyring: Keyring
    control: Control
    faults: FaultRules
    lock: RLock
    clock: Clock
    cloud: Callable[[], Cloud]
    touched: Callable[[], None]

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer one request."""
        refused = refusal(request, self.port)
        if refused is not None:
            return refused
        if request.raw_path.startswith(PREFIX):
            return self.control.answer(request)
        try:
            scope = verify(request, self.keyring.secret_of, self.clock.now())
            request = aws_chunked.plain(request) if aws_chunked.is_streaming(request) else request
        except SignatureError as err:
            return error_answer(_service_of(request), err.code, err.message, 403)
        except ValueError as err:
            return error_answer("s3", "InvalidRequest", str(err), 400)
        self.touched()
        return self._carry_out(request, scope, identify(request, scope))

    def guard(self, request: HttpRequest) -> HttpResponse | None:
        """Refuse a large body that no key of this home vouches for."""
        refused = refusal(request, self.port)
        if refused is not None or request.raw_path.startswith(PREFIX):
            return refused or HttpResponse(413, {"Content-Type": "text/plain"}, b"the body is too large")
        try:
            verify_head(request, self.keyring.secret_of, self.clock.now())
        except SignatureError as err:
            status = 413 if err.code == "RequestEntityTooLarge" else 403
            return error_answer(_service_of(request), err.code, err.message, status)
        return None

    def _carry_out(self, request: HttpRequest, scope: Scope, call: ApiCall) -> HttpResponse:
        struck = self._strike(call, "before")
        if struck is not None:
            return struck
        try:
            answer = self._effect(request, scope, call)
        except NotSavedError as err:
            _log.error("%s refused: %s", call.action, err.message)
            # A client error: clients repeat others by themselves, and nothing is better a second later.
            return error_answer(call.service, "InsufficientStorage", f"{err.message}; {err.hint}", 400)
        except CloudGpuError as err:
            _log.exception("%s failed", call.action)
            return error_answer(call.service, "InternalFailure", err.message, 500)
        # In the form of the service: a client that cannot read an answer takes it for a fault of the network.
        except Exception as err:  # noqa: BLE001 - whatever moto makes of a request that nobody thought of
            _log.exception("%s failed", call.action)
            message = f"the rehearsal cloud has a bug ({type(err).__name__}): see its server.log"
            return error_answer(call.service, "InternalFailure", message, 500)
        struck = self._strike(call, "after_effect")
        return answer if struck is None else struck

    def _effect(self, request: HttpRequest, scope: Scope, call: ApiCall) -> HttpResponse:
        """Do it and make it durable before anybody hears of it."""
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

    def _strike(self, call: ApiCall, phase: Phase) -> HttpResponse | None:
        rule = self.faults.find(call, phase)
        if rule is None:
            return None
        _log.info("fault %s strikes %s (%s)", rule.id, call.action, phase)
        return self._fault(rule, call)

    def _fault(self, rule: FaultRule, call: ApiCall) -> HttpResponse | None:
        if rule.do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if rule.do == "delay":
            self.clock.sleep(rule.seconds)
        if rule.do == "hold":
            self.faults.hold(rule, call)
        if rule.do == "drop" or (rule.do == "hold" and rule.drop):
            raise DropConnectionError
        if rule.do == "error":
            return error_answer(call.service, rule.code, rule.message, rule.http)
        return None


def _service_of(request: HttpRequest) -> str:
    """The service that an unverified request claims, to answer in its own form."""
    scope = request.headers.find("authorization").partition("Credential=")[2].partition(",")[0].split("/")
    if len(scope) == 5:  # noqa: PLR2004 - id, date, region, service, terminator
        return scope[3]
    return "ssm" if request.headers.find("x-amz-target") else "s3"
