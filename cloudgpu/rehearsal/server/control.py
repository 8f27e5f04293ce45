"""The rehearsal cloud's control API under `/_cloudgpu/`, the faults that it sets, and the signatures of its calls.

The key is never sent, so an unrelated process on a reused port cannot learn it.
"""

import hashlib
import hmac
import http.client
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cloudgpu.decoding import MALFORMED, decode_as, describe_error
from cloudgpu.errors import CloudGpuError
from cloudgpu.files import parse_json
from cloudgpu.rehearsal.aws_api.interfaces import NodeHost
from cloudgpu.rehearsal.aws_api.market import Market
from cloudgpu.rehearsal.faults.api_faults import ActiveConditions, FaultRules, conditions_from
from cloudgpu.rehearsal.faults.node_faults import NodeFault, node_fault_from
from cloudgpu.rehearsal.server.http_message import HttpRequest, HttpResponse

_PARTS: Mapping[str, type] = {
    "names": list, "rules": list, "capacity": dict, "quotas": dict, "cloud": dict, "nodes": list,
}  # fmt: skip
HEADER = "X-Cloudgpu-Seal"
_TOLERANCE_S = 300.0
_SHOWN_CHARACTERS = 300
PREFIX = "/_cloudgpu/"


@dataclass
class ActiveFaults:
    """The active faults of one server. Only the capacity and quota tables are saved to disk."""

    faults: FaultRules
    market: Market
    behaviour: ActiveConditions
    host: NodeHost
    names: list[str] = field(default_factory=list)
    cloud: dict[str, Any] = field(default_factory=dict)
    nodes: list[NodeFault] = field(default_factory=list)

    def put(self, row: Mapping[str, Any]) -> None:
        """Replace all active faults."""
        parts = {name: row.get(name, kind()) for name, kind in _PARTS.items()}
        for name, kind in _PARTS.items():
            if not isinstance(parts[name], kind):
                message = f"{name} is not a {kind.__name__}"
                raise ValueError(message)  # noqa: TRY004 - the caller turns it into an HTTP response
        conditions = conditions_from(parts["cloud"])
        nodes = [node_fault_from(fault) for fault in parts["nodes"]]
        self.market.put_capacity(parts["capacity"])
        self.market.put_quotas(parts["quotas"])
        self.faults.put(parts["rules"])
        self.behaviour.put(conditions)
        self.names, self.cloud = [str(name) for name in parts["names"]], dict(parts["cloud"])
        if nodes or self.nodes:
            self.host.put_faults(nodes)
        self.nodes = nodes

    def shown(self) -> dict[str, Any]:
        """Return the active faults and the number of calls that conditions affected, as JSON values."""
        return {
            "names": self.names,
            "rules": self.faults.shown()["rules"],
            "capacity": self.market.capacity,
            "quotas": self.market.quotas,
            "cloud": self.cloud,
            "struck": self.behaviour.times_applied,
            "nodes": [{"do": fault.do, "match": dict(fault.match), "count": fault.count} for fault in self.nodes],
        }


def sign_call(secret: str, method: str, target: str, body: bytes, *, at: float | None = None) -> str:
    """Return the value of a control call's signature header; `at` is Unix time in seconds."""
    stamp = f"{time.time() if at is None else at:.3f}"
    text = b"\n".join([stamp.encode(), method.encode(), target.encode(), hashlib.sha256(body).hexdigest().encode()])
    return f"{stamp}:{hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()}"


def signature_is_valid(secret: str, value: str, method: str, target: str, body: bytes) -> bool:
    """Return True if the header was computed from `secret` for exactly this call, with a recent timestamp."""
    stamp, _, _ = value.partition(":")
    try:
        at = float(stamp)
    except ValueError:
        return False
    fresh = abs(time.time() - at) <= _TOLERANCE_S
    return fresh and hmac.compare_digest(sign_call(secret, method, target, body, at=at).encode(), value.encode())


def exchange(address: str, secret: str, method: str, target: str, body: bytes, limit_s: float) -> tuple[int, Any]:
    """Send one control call, and return the status and the JSON of the response, or its text as an `error`."""
    connection = http.client.HTTPConnection(address, timeout=limit_s)
    try:
        headers = {HEADER: sign_call(secret, method, target, body), "Content-Type": "application/json"}
        connection.request(method, target, body=body or None, headers=headers)
        response = connection.getresponse()
        content = response.read()
        try:
            return response.status, parse_json(content)
        except ValueError:
            return response.status, {"error": content.decode(errors="replace").strip()[:_SHOWN_CHARACTERS]}
    finally:
        connection.close()


class ControlTarget(Protocol):
    """The server operations that control calls use."""

    def health(self) -> dict[str, Any]:
        """Return the server's identity and whether it is ready."""

    def nodes(self) -> list[dict[str, Any]]:
        """Return every instance that is not terminated."""

    def list_resources(self) -> dict[str, list[dict[str, Any]]]:
        """Return every billable or leftover resource."""

    def advance(self, seconds: float) -> None:
        """Advance the clock for node timers and schedules."""

    def request_stop(self) -> None:
        """Request that the server terminate every node and stop, once the response to this call has been sent."""


@dataclass(frozen=True)
class ControlApi:
    """The handler for control calls, which must be signed with the state home's key."""

    secret: str
    faults: FaultRules
    market: Market
    server: ControlTarget
    active_faults: ActiveFaults

    def handle(self, request: HttpRequest) -> HttpResponse:
        """Execute one control call and return the response."""
        signature = request.headers.find(HEADER)
        if not signature_is_valid(self.secret, signature, request.method, request.target, request.body):
            return _json({"error": "the request is not signed with this state home's key"}, 403)
        handler = self._routes().get((request.method, request.raw_path.removeprefix(PREFIX)))
        if handler is None:
            return _json({"error": f"unknown control call: {request.method} {request.raw_path}"}, 404)
        try:
            return _json(handler(parse_json(request.body or b"null")))
        except MALFORMED as err:
            return _json({"error": describe_error(err)}, 400)
        except CloudGpuError as err:
            return _json({"error": err.message}, 500)

    def _routes(self) -> Mapping[tuple[str, str], Callable[[Any], Any]]:
        return {
            ("GET", "health"): lambda _: self.server.health(),
            ("GET", "nodes"): lambda _: {"nodes": self.server.nodes()},
            ("GET", "census"): lambda _: self.server.list_resources(),
            ("GET", "faults"): lambda _: self.faults.shown(),
            ("PUT", "faults"): self._put_faults,
            ("GET", "script"): lambda _: self.active_faults.shown(),
            ("PUT", "script"): self._put_script,
            ("POST", "release"): lambda _: {"released": self.faults.release()},
            ("PUT", "capacity"): self._put_capacity,
            ("PUT", "quotas"): self._put_quotas,
            ("PUT", "prices"): self._put_prices,
            ("POST", "advance"): self._advance,
            ("POST", "stop"): self._stop,
        }

    def _put_faults(self, rows: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        self.faults.put(_of_type(rows or [], list))
        return self.faults.shown()

    def _put_script(self, row: Any) -> dict[str, Any]:  # noqa: ANN401
        self.active_faults.put(_of_type(row or {}, dict))
        return self.active_faults.shown()

    def _put_capacity(self, table: Any) -> dict[str, int]:  # noqa: ANN401
        self.market.put_capacity(_of_type(table or {}, dict))
        return self.market.capacity

    def _put_quotas(self, table: Any) -> dict[str, int]:  # noqa: ANN401
        self.market.put_quotas(_of_type(table or {}, dict))
        return self.market.quotas

    def _put_prices(self, table: Any) -> dict[str, str]:  # noqa: ANN401
        self.market.put_prices(_of_type(table or {}, dict))
        return self.market.prices

    def _advance(self, row: Any) -> dict[str, float]:  # noqa: ANN401
        seconds = decode_as(float, _of_type(row, dict).get("seconds", 0))
        self.server.advance(seconds)
        return {"advanced_s": seconds}

    def _stop(self, _: Any) -> dict[str, bool]:  # noqa: ANN401
        self.server.request_stop()
        return {"stopping": True}


def _of_type(value: Any, expected: type[Any]) -> Any:  # noqa: ANN401 - JSON
    if not isinstance(value, expected):
        message = f"the request body is of type {type(value).__name__}, not {expected.__name__}"
        raise ValueError(message)  # noqa: TRY004 - the caller turns it into an HTTP response
    return value


def _json(value: Any, status: int = 200) -> HttpResponse:  # noqa: ANN401
    return HttpResponse(status, {"Content-Type": "application/json"}, json.dumps(value, default=str).encode())
