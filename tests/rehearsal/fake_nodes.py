"""A fake node host that starts no processes. Its records are in a JSON file, so they survive if a server is killed."""

import base64
import hashlib
import json
import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.faults.node_faults import FaultInjector, NodeFault
from cloudgpu.rehearsal.nodes.servers.metadata import SPOT_RECLAIM_REASON
from cloudgpu.rehearsal.nodes.values import NodeReport, NodeSpec, Opened, PoweredOff, RoleCredentials, StartedNode


class FakeNodeHost:
    """A `cloudgpu.rehearsal.aws_api.interfaces.NodeHost` for tests that need only the API.

    Attributes:
        refuse: Error message with which every boot fails; empty if boots succeed.
        advanced_s: Seconds by which the timer clock was advanced.
        started: Specifications of the booted nodes, in boot order.
        reach: Instance ID -> access set after boot: whether SSH from outside and internet access are allowed.
        images: Image ID -> ID of the instance that the image was created from.
        mountable: Instance ID -> sources that the node may mount, each with the name of its backing directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._events: queue.Queue[PoweredOff | None] = queue.Queue()
        self.credentials: RoleCredentials | None = None
        self.advanced_s = 0.0
        self.refuse = ""
        self.started: list[NodeSpec] = []
        self.reach: dict[str, tuple[bool, bool]] = {}
        self.images: dict[str, str] = {}
        self.mountable: dict[str, dict[str, str]] = {}
        self._fault_injector = FaultInjector()
        self._spot_ends: dict[str, float] = {}

    def _nodes(self) -> dict[str, dict[str, str]]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}

    def _write(self, nodes: dict[str, dict[str, str]]) -> None:
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(nodes))
        draft.replace(self._path)

    def start(self, spec: NodeSpec) -> StartedNode:
        """Mark the node as running. A node with an existing ID keeps its address."""
        with self._lock:
            if self.refuse:
                raise RehearsalError(self.refuse)
            faults = self._fault_injector.at_boot(spec)
            if any(fault.do == "boot-fails" for fault in faults):
                raise RehearsalError("Internal error on launch (simulated fault)")
            self._notice(spec.instance_id, faults)
            self.started.append(spec)
            nodes = self._nodes()
            row = nodes.setdefault(spec.instance_id, {"address": f"127.9.0.{len(nodes) + 1}", "user": spec.user})
            row["state"] = "running"
            self._write(nodes)
            return StartedNode(row["address"], 2222, "SHA256:fake")

    def stop(self, instance_id: str) -> None:
        """Mark the node as powered off."""
        self._set(instance_id, "off")

    def power_off(self, instance_id: str) -> None:
        """Mark the node as powered off."""
        self._set(instance_id, "off")

    def reboot(self, instance_id: str) -> None:
        """Mark the node as running."""
        self._set(instance_id, "running")

    def _set(self, instance_id: str, state: str) -> None:
        with self._lock:
            nodes = self._nodes()
            if instance_id in nodes:
                nodes[instance_id]["state"] = state
                self._write(nodes)

    def forget(self, instance_id: str) -> None:
        """Delete the node's record."""
        with self._lock:
            nodes = self._nodes()
            nodes.pop(instance_id, None)
            self._write(nodes)

    def set_credentials(self, credentials: RoleCredentials) -> None:
        """Record the credentials."""
        self.credentials = credentials

    def list(self) -> tuple[NodeReport, ...]:
        """Return the nodes that were started and not forgotten."""
        with self._lock:
            nodes = self._nodes()
        return tuple(
            NodeReport(name, row["state"], row["address"], 2222, row["user"], "SHA256:fake")  # type: ignore[arg-type]
            for name, row in nodes.items()
        )

    def console(self, instance_id: str) -> bytes:
        """Return console output that contains a host key, as cloud-init prints it."""
        digest = base64.b64encode(hashlib.sha256(instance_id.encode()).digest()).decode().rstrip("=")
        lines = (
            f"console of {instance_id}",
            "-----BEGIN SSH HOST KEY FINGERPRINTS-----",
            f"256 SHA256:{digest} root@{instance_id} (ED25519)",
            "-----END SSH HOST KEY FINGERPRINTS-----",
        )
        return "".join(f"{line}\r\n" for line in lines).encode()

    def events(self) -> Iterator[PoweredOff]:
        """Yield an event for each node that powers off, until `shutdown` is called."""
        while (event := self._events.get()) is not None:
            yield event

    def power_itself_off(self, instance_id: str) -> None:
        """Simulate a node that powers itself off."""
        self._set(instance_id, "off")
        self._events.put(PoweredOff(instance_id, "shutdown"))

    def advance(self, seconds: float) -> None:
        """Advance the clock and interrupt spot nodes whose notice period is over."""
        self.advanced_s += seconds
        for instance_id, due_s in tuple(self._spot_ends.items()):
            if due_s <= self.advanced_s:
                del self._spot_ends[instance_id]
                self._set(instance_id, "off")
                self._events.put(PoweredOff(instance_id, SPOT_RECLAIM_REASON))

    def set_access(self, instance_id: str, opened: Opened) -> None:
        """Record the node's network and storage access."""
        self.reach[instance_id] = (opened.ssh, opened.egress)
        self.mountable[instance_id] = dict(opened.mountable)

    def record_image_packages(self, instance_id: str, image_id: str) -> None:
        """Record which node the image was created from."""
        self.images[image_id] = instance_id

    def put_faults(self, faults: Sequence[NodeFault]) -> None:
        """Replace the faults; only failed launches and spot notices have an effect here."""
        with self._lock:
            self._fault_injector.put(faults)
            for spec in self.started:
                self._notice(spec.instance_id, self._fault_injector.now(spec))

    def _notice(self, instance_id: str, faults: Sequence[NodeFault]) -> None:
        for fault in faults:
            if fault.do == "spot-notice":
                self._spot_ends.setdefault(instance_id, self.advanced_s + fault.seconds)

    def close(self) -> None:
        """Close the event stream."""
        self._events.put(None)
