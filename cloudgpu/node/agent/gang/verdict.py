"""Decide the final status of a run from the nodes' reports, without clocks or sockets. Times are monotonic seconds.

Every heartbeat contains a node's whole report or the head node's whole order, so a lost connection loses no
information. The head node decides. A worker decides on its own only if it cannot reach the head node.
"""

from __future__ import annotations

import signal
from typing import Any, Dict

from ..untrusted_data import require_integer, require_number, text
from .spec import Limits

Report = Dict[str, Any]
"""`{"done": bool, "failure": None | {..., "age_s"}, "cancel": None | {"signal", "grace_s"}, "ended": bool}`"""
_STATES = frozenset({"succeeded", "failed", "cancelled"})
GangVerdict = Dict[str, Any]
"""`{"state": "succeeded|failed|cancelled", "first_failure": None | {...}, "signal": name, "grace_s": seconds}`"""


def failure_record(
    node_index: int, reason: str, *, rank: int | None = None, exit_code: int | None = None
) -> dict[str, Any]:
    """Return a failure in the format of a status's `first_failure`. A negative exit code is a negated signal number."""
    return {"rank": rank, "exit_code": exit_code, "node_index": node_index, "reason": reason}


def read_report(message: dict[str, Any]) -> Report:
    """Parse a report from another node, which may run a different version."""
    reported_failure, cancel_request = message["failure"], message["cancel"]
    report: Report = {"done": bool(message["done"]), "failure": None, "cancel": None, "ended": bool(message["ended"])}
    if reported_failure is not None:
        report["failure"] = {**_read_failure(reported_failure), "age_s": require_number(reported_failure["age_s"])}
    if cancel_request is not None:
        report["cancel"] = read_cancel(cancel_request)
    return report


def read_order(message: dict[str, Any]) -> dict[str, Any]:
    """Parse an order from the head node."""
    order: dict[str, Any] = {"formed": bool(message["formed"]), "verdict": None}
    decided = message["verdict"]
    if decided is not None:
        if decided["state"] not in _STATES:
            raise ValueError("unknown state")
        reported_failure = decided["first_failure"]
        first_failure = None if reported_failure is None else _read_failure(reported_failure)
        order["verdict"] = {"state": decided["state"], "first_failure": first_failure, **read_cancel(decided)}
    return order


def _read_failure(reported: dict[str, Any]) -> dict[str, Any]:
    rank, exit_code = reported["rank"], reported["exit_code"]
    if exit_code is not None and (isinstance(exit_code, bool) or not isinstance(exit_code, int)):
        raise ValueError("not an exit code")
    known = {"rank": None if rank is None else require_integer(rank), "exit_code": exit_code}
    return {
        **reported,
        **known,
        "node_index": require_integer(reported["node_index"]),
        "reason": text(reported["reason"]),
    }


def read_cancel(request: dict[str, Any]) -> dict[str, Any]:
    """Parse the signal and grace period of a cancel request."""
    if request["signal"] not in signal.Signals.__members__:
        raise ValueError("unknown signal")
    return {"signal": request["signal"], "grace_s": require_number(request["grace_s"])}


class HeadCore:
    """The head node's decisions. The head node is node 0, and its own report is treated like any other node's."""

    def __init__(self, nodes: int, limits: Limits, now: float) -> None:
        self.verdict: GangVerdict | None = None
        self.formed = False
        self._nodes = nodes
        self._limits = limits
        self._began = now
        self._last_message_at: dict[int, float] = {}
        self._closed: dict[int, float] = {}
        self._done: dict[int, bool] = {}
        self._ended: dict[int, bool] = {}
        self._failures: list[tuple[float, dict[str, Any]]] = []
        self._failed_nodes: dict[int, bool] = {}
        self._settled_at = 0.0

    @property
    def order(self) -> dict[str, Any]:
        """The order to send to all workers."""
        return {"formed": self.formed, "verdict": self.verdict}

    def receive(self, node: int, report: Report, now: float) -> None:
        """Process a node's report."""
        self._last_message_at[node] = now
        self._closed.pop(node, None)
        self._done[node] = report["done"]
        self._ended[node] = report["ended"]
        if report["failure"] is not None and node not in self._failed_nodes:
            self._failed_nodes[node] = True
            first_failure = dict(report["failure"])
            # Nodes send ages instead of timestamps, so that their clocks need not agree.
            self._suspect(now - first_failure.pop("age_s"), first_failure, now)
        if report["cancel"] is not None:
            self._decide("cancelled", None, report["cancel"]["signal"], report["cancel"]["grace_s"])

    def closed(self, node: int, now: float) -> None:
        """Record that a node disconnected. It may reconnect."""
        if not self.formed:
            self._last_message_at.pop(node, None)
        self._closed.setdefault(node, now)

    def tick(self, now: float) -> None:
        """Form the gang, detect lost nodes, and decide the final status if possible, as of the given time."""
        if self.verdict is not None:
            return
        if not self.formed:
            self._form(now)
        else:
            self._look_for_lost(now)
        if self._failures and now >= self._settled_at:
            first = min(self._failures, key=lambda seen: seen[0])[1]
            self._decide("failed", first)
        elif self.formed and not self._failures and all(self._done.get(node) for node in range(self._nodes)):
            self._decide("succeeded", None)

    def released(self, now: float) -> bool:
        """Return True if the outcome is decided and every worker has finished, disconnected or gone silent."""
        return self.verdict is not None and all(
            self._ended.get(node) or node in self._closed or self._silent_s(node, now) > self._limits.lost_s
            for node in range(1, self._nodes)
        )

    def _form(self, now: float) -> None:
        missing = [node for node in range(self._nodes) if node not in self._last_message_at]
        self.formed = not missing
        waited = self._limits.start_timeout_s
        if missing and now - self._began > waited:
            named = ", ".join(str(node) for node in missing)
            nodes = f"node {named}" if len(missing) == 1 else f"nodes {named}"
            self._suspect(now, failure_record(missing[0], f"{nodes} did not join within {waited:.0f} s"), now)

    def _look_for_lost(self, now: float) -> None:
        for node in range(1, self._nodes):
            disconnected_s = now - self._closed.get(node, now)
            if disconnected_s > self._limits.reconnect_s:
                self._suspect(now, failure_record(node, f"lost contact with node {node}: its agent disconnected"), now)
            elif self._silent_s(node, now) > self._limits.lost_s:
                reason = f"lost contact with node {node}: silent for {self._limits.lost_s:.0f} s"
                self._suspect(now, failure_record(node, reason), now)

    def _silent_s(self, node: int, now: float) -> float:
        return now - self._last_message_at.get(node, self._began)

    def _suspect(self, at: float, reported: dict[str, Any], now: float) -> None:
        if not self._failures:
            # A dead rank makes other ranks fail within milliseconds, and the earliest failure may be reported last.
            self._settled_at = now + self._limits.settle_s
        self._failures.append((at, reported))

    def _decide(self, state: str, first: dict[str, Any] | None, signal: str = "SIGTERM", grace_s: float = -1) -> None:
        if self.verdict is None:
            grace_s = self._limits.grace_s if grace_s < 0 else grace_s
            self.verdict = {"state": state, "first_failure": first, "signal": signal, "grace_s": grace_s}


class WorkerCore:
    """A worker's decisions. It follows the head node's orders, and stops on its own if the head node is unreachable."""

    _START_GRACE_S = 10.0
    """Seconds added to the start timeout, so that the head node's report of missing nodes arrives first."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.verdict: GangVerdict | None = None
        self.formed = False
        self._limits = limits
        self._began = now
        self._last_message_at: float | None = None
        self._closed: float | None = None
        self._cancelled_at: float | None = None
        self._cancel: dict[str, Any] = {}

    @property
    def last_message_at(self) -> float:
        """Time of the last message from the head node, or the start time if there is none."""
        return self._began if self._last_message_at is None else self._last_message_at

    def cancel(self, request: dict[str, Any], now: float) -> None:
        """Request cancellation. If the head node does not decide in time, this node stops on its own."""
        if self._cancelled_at is None:
            self._cancelled_at, self._cancel = now, request

    def receive(self, order: dict[str, Any], now: float) -> None:
        """Process an order from the head node."""
        self._last_message_at, self._closed = now, None
        self.formed = self.formed or order["formed"]
        self.verdict = self.verdict or order["verdict"]

    def closed(self, now: float) -> None:
        """Record that the connection was lost or could not be established. The caller reconnects."""
        self._closed = now if self._closed is None else self._closed

    def tick(self, now: float) -> None:
        """Decide without the head node if it has not responded in time."""
        if self.verdict is not None:
            return
        if self._cancelled_at is not None and now - self._cancelled_at > self._limits.reconnect_s:
            self.verdict = {"state": "cancelled", "first_failure": None, **self._cancel}
        elif not self.formed:
            if now - self._began > self._limits.start_timeout_s + self._START_GRACE_S:
                self._lost(f"node 0 did not start the run within {self._limits.start_timeout_s:.0f} s")
        elif self._closed is not None and now - self._closed > self._limits.reconnect_s:
            self._lost("lost contact with node 0: its agent disconnected")
        elif self._last_message_at is not None and now - self._last_message_at > self._limits.lost_s:
            self._lost(f"lost contact with node 0: silent for {self._limits.lost_s:.0f} s")

    def _lost(self, reason: str) -> None:
        grace_s = self._limits.grace_s
        self.verdict = {
            "state": "failed",
            "first_failure": failure_record(0, reason),
            "signal": "SIGTERM",
            "grace_s": grace_s,
        }
