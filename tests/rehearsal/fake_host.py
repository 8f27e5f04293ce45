"""A node host without nodes: what it carries lies in one JSON file, so that it outlives a killed server."""

import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.node_spec import NodeSpec
from cloudgpu.rehearsal.nodes.values import NodeReport, PoweredOff, RoleCredentials, StartedNode


class FakeHost:
    """Implements `cloudgpu.rehearsal.world.NodeHost`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._events: queue.Queue[PoweredOff | None] = queue.Queue()
        self.credentials: RoleCredentials | None = None
        self.advanced_s = 0.0
        self.refuse = ""
        self.started: list[NodeSpec] = []

    def _nodes(self) -> dict[str, dict[str, str]]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}

    def _write(self, nodes: dict[str, dict[str, str]]) -> None:
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(nodes))
        draft.replace(self._path)

    def start(self, spec: NodeSpec) -> StartedNode:
        with self._lock:
            if self.refuse:
                raise RehearsalError(self.refuse)
            self.started.append(spec)
            nodes = self._nodes()
            row = nodes.setdefault(spec.instance_id, {"address": f"127.9.0.{len(nodes) + 1}", "user": spec.user})
            row["state"] = "running"
            self._write(nodes)
            return StartedNode(row["address"], 2222, "SHA256:fake")

    def stop(self, instance_id: str) -> None:
        self._set(instance_id, "off")

    def power_off(self, instance_id: str) -> None:
        self._set(instance_id, "off")

    def reboot(self, instance_id: str) -> None:
        self._set(instance_id, "running")

    def _set(self, instance_id: str, state: str) -> None:
        with self._lock:
            nodes = self._nodes()
            if instance_id in nodes:
                nodes[instance_id]["state"] = state
                self._write(nodes)

    def forget(self, instance_id: str) -> None:
        with self._lock:
            nodes = self._nodes()
            nodes.pop(instance_id, None)
            self._write(nodes)

    def give_credentials(self, credentials: RoleCredentials) -> None:
        self.credentials = credentials

    def list(self) -> tuple[NodeReport, ...]:
        with self._lock:
            nodes = self._nodes()
        return tuple(
            NodeReport(name, row["state"], row["address"], 2222, row["user"], "SHA256:fake")  # type: ignore[arg-type]
            for name, row in nodes.items()
        )

    def console(self, instance_id: str) -> bytes:
        return f"console of {instance_id}\r\n".encode()

    def events(self) -> Iterator[PoweredOff]:
        while (event := self._events.get()) is not None:
            yield event

    def power_itself_off(self, instance_id: str) -> None:
        self._set(instance_id, "off")
        self._events.put(PoweredOff(instance_id, "shutdown"))

    def advance(self, seconds: float) -> None:
        self.advanced_s += seconds

    def shutdown(self) -> None:
        self._events.put(None)
