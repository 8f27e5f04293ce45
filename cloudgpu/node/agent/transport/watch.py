"""Watch the network of a run on one node, and report a failure if the recipe requires another one."""

from __future__ import annotations

import os
from typing import Any, Iterable

from ..containers.run_container import RankContainer
from ..errors import AgentError
from ..gang.spec import TransportSpec
from ..gang.verdict import failure_record
from .nccl_lines import EFA, UNKNOWN, Transport
from .nccl_logs import FOLDER, NcclLogs, empty_file

_EVERY_S = 1.0
_HINT = (
    "NCCL needs the plugin aws-ofi-nccl as libnccl-net.so, or as libnccl-net-$NCCL_NET_PLUGIN.so, where the ranks run "
    "(images/efa-nccl); `--set resources.network=auto` accepts the slower network"
)


class TransportWatch:
    """The network of the ranks of one node. Nothing is watched if the request does not ask for it."""

    def __init__(
        self, spec: TransportSpec | None, run_dir: str, logs: Iterable[str], container: RankContainer | None
    ) -> None:
        """Prepare the directory of NCCL's files."""
        self._spec = spec
        self._logs: NcclLogs | None = None
        self._transport = Transport()
        self._plugin_problem = ""
        self._failed_at: float | None = None
        self._read_at = 0.0
        if spec is not None:
            shared = os.path.join(run_dir, "container") if container is not None else run_dir
            folder = os.path.join(shared, FOLDER)
            # Files that root wrote in a container can be emptied only there.
            empty = container.empty if container is not None else lambda name: empty_file(os.path.join(folder, name))
            os.makedirs(shared, exist_ok=True)
            self._logs = NcclLogs(folder, logs, empty)

    def take_plugin_problem(self, problem: str) -> None:
        """Process the reason why NCCL cannot use EFA where the ranks run. An empty `problem` has no effect."""
        if self._spec is None or not problem:
            return
        if self._spec.required == EFA:
            message = f"resources.network is efa, but NCCL cannot use it in this image: {problem}"
            raise AgentError(message, code="network", hint=_HINT)
        self._plugin_problem = problem

    def read(self, now: float, *, last: bool = False) -> None:
        """Read NCCL's logs if a second has passed since the last time, or for the `last` time."""
        if self._logs is None or (not last and now - self._read_at < _EVERY_S):
            return
        self._read_at = now
        self._logs.read()
        self._transport = self._logs.transport
        if self._failed_at is None and self._wrong:
            self._failed_at = now

    def failure(self, node_index: int, now: float) -> dict[str, Any] | None:
        """Return the failure, with its age in seconds, if NCCL uses another network than the required one.

        A network that NCCL has not named is not a failure: the program may not use NCCL, or not yet.
        """
        if self._failed_at is None or self._spec is None:
            return None
        seen = self._transport
        said = "; ".join(filter(None, (seen.line, seen.why)))
        reason = f"resources.network is {self._spec.required}, but NCCL uses {seen.name} ({said}): {_HINT}"
        return {**failure_record(node_index, reason), "age_s": max(0.0, now - self._failed_at)}

    def as_json(self) -> dict[str, str] | None:
        """Return the network as it appears in the status file; None if it is not watched.

        It is also None as long as NCCL is silent, because the program may not use NCCL, unless the recipe requires EFA
        or NCCL could not use it.
        """
        if self._logs is None or self._spec is None:
            return None
        if not (self._logs.printed or self._spec.required or self._plugin_problem):
            return None
        seen = self._transport.as_json()
        return {**seen, "why": seen["why"] or self._plugin_problem}

    @property
    def _wrong(self) -> bool:
        required = "" if self._spec is None else self._spec.required
        return bool(required) and self._transport.name not in (required, UNKNOWN)
