"""Simulate AWS Systems Manager: sessions and their data channels, and the parameters of machine images.

Every session has a separate listener on 127.0.0.1, which accepts one client that sends the session's token. The
listener forwards the stream to the socket of the node's simulated SSM agent, so the stream does not depend on
security groups or public addresses.
"""

import contextlib
import hmac
import secrets
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends
from moto.ssm.exceptions import ParameterNotFound
from moto.ssm.responses import SimpleSystemManagerResponse

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.aws_api.dispatch import JsonError
from cloudgpu.rehearsal.aws_api.ec2.images import IMAGE_FOLDERS, ami_of_parameter
from cloudgpu.rehearsal.aws_api.ec2.reachability import allowed_traffic
from cloudgpu.rehearsal.aws_api.iam_service import allows
from cloudgpu.rehearsal.aws_api.records import records_of
from cloudgpu.rehearsal.nodes import addresses

_CHUNK_BYTES = 1 << 16
_CONNECT_TIMEOUT_S = 60.0
_TOKEN_BYTES = 512
_LAST_MODIFIED = datetime(2026, 1, 1, tzinfo=UTC)
ACTIONS: Final = frozenset({"StartSession"})
_DOCUMENT = "AWS-StartSSHSession"
_AGENT_PERMISSIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)
_ENDPOINTS = ("ssm", "ssmmessages")


@dataclass(frozen=True)
class Channel:
    """A data channel: the session id, and the URL and token with which a client connects."""

    session_id: str
    token: str
    url: str


class SsmSessions:
    """The Session Manager sessions of one rehearsal cloud. `nodes` is the node host's directory."""

    def __init__(self, nodes: Path) -> None:
        self._nodes = nodes

    def is_agent_connected(self, instance_id: str) -> bool:
        """Return True if the agent's socket exists on the node."""
        return self._agent(instance_id).exists()

    def open(self, instance_id: str) -> Channel:
        """Open a channel that waits one minute for its client to connect."""
        channel_id, token = f"rehearsal-{secrets.token_hex(9)}", secrets.token_urlsafe(48)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(_CONNECT_TIMEOUT_S)
        threading.Thread(target=self._serve, args=(listener, token, instance_id), daemon=True).start()
        port = listener.getsockname()[1]
        return Channel(channel_id, token, f"ws://127.0.0.1:{port}/v1/data-channel/{channel_id}?role=publish_subscribe")

    def _agent(self, instance_id: str) -> Path:
        return self._nodes / "instances" / instance_id / "run" / addresses.AGENT_SOCKET

    def _serve(self, listener: socket.socket, token: str, instance_id: str) -> None:
        with contextlib.suppress(OSError, RehearsalError), listener:
            client, _ = listener.accept()
            with client:
                client.settimeout(_CONNECT_TIMEOUT_S)
                if not hmac.compare_digest(_read_line(client), token.encode()):
                    return
                client.settimeout(None)
                with addresses.connect(self._agent(instance_id), None) as agent:
                    to_agent = threading.Thread(target=_copy, args=(client, agent), daemon=True)
                    to_agent.start()
                    _copy(agent, client)


def _read_line(client: socket.socket) -> bytes:
    """Read the first line byte by byte, because all later bytes belong to the forwarded stream."""
    line = b""
    while len(line) < _TOKEN_BYTES and not line.endswith(b"\n"):
        piece = client.recv(1)
        if not piece:
            break
        line += piece
    return line.rstrip(b"\n")


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_CHUNK_BYTES):
            sink.sendall(piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class StrictSsm(SimpleSystemManagerResponse):
    """A handler for one SSM request."""

    def get_parameter(self) -> ActionResult:
        """Return a public image parameter, or a parameter stored in moto."""
        name = str(self._get_param("Name"))
        parameter = self._public(name)
        if parameter is None and name.startswith(IMAGE_FOLDERS):
            raise ParameterNotFound(f"Parameter {name} not found.")
        return ActionResult({"Parameter": parameter}) if parameter else super().get_parameter()

    def get_parameters(self) -> ActionResult:
        """Return public image parameters and parameters stored in moto, and the names that do not exist."""
        names = [str(name) for name in self._get_param("Names") or []]
        public = [row for row in (self._public(name) for name in names) if row]
        public_names = {row["Name"] for row in public}
        stored_names = [name for name in names if name not in public_names]
        readable = [name for name in stored_names if not name.startswith(IMAGE_FOLDERS)]
        stored = self.ssm_backend.get_parameters(readable) if readable else {}
        descriptions = [row.response_object(self._get_param("WithDecryption"), self.region) for row in stored.values()]
        missing = [name for name in stored_names if name not in stored]
        return ActionResult({"Parameters": [*public, *descriptions], "InvalidParameters": missing})

    def _public(self, name: str) -> dict[str, Any] | None:
        ami_id = ami_of_parameter(name, str(self.region))
        if ami_id is None:
            return None
        return {
            "Name": name,
            "Type": "String",
            "Value": ami_id,
            "Version": 1,
            "LastModifiedDate": _LAST_MODIFIED.timestamp(),
            "ARN": f"arn:aws:ssm:{self.region}::parameter{name}",
            "DataType": "aws:ec2:image",
        }


def start_session(sessions: SsmSessions, region: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Open a channel to port 22 of a node."""
    if params.get("DocumentName") != _DOCUMENT:
        raise JsonError(
            "InvalidDocument", f"The rehearsal cloud does not simulate document {params.get('DocumentName')}."
        )
    if (params.get("Parameters") or {}).get("portNumber", ["22"]) != ["22"]:
        raise JsonError("InvalidParameters", "The rehearsal cloud simulates sessions to port 22 only.")
    target = str(params.get("Target"))
    if not _is_connected(sessions, region, target):
        raise JsonError("TargetNotConnected", f"{target} is not connected.")
    channel = sessions.open(target)
    return {"SessionId": channel.session_id, "TokenValue": channel.token, "StreamUrl": channel.url}


def _is_connected(sessions: SsmSessions, region: str, target: str) -> bool:
    """Return True if the agent is running, the node's role allows the agent's calls, and the service is reachable."""
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    running = (instance for instance in backend.all_instances() if instance.state == "running")
    instance = next((instance for instance in running if instance.id == target), None)
    record = records_of(backend).nodes.get(target)
    if instance is None or record is None or not sessions.is_agent_connected(target):
        return False
    return _may_call(record.role) and (
        allowed_traffic(backend, instance).egress or _has_endpoints(backend, instance, region)
    )


def _may_call(role_name: str) -> bool:
    roles = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].roles.values()
    role = next((role for role in roles if role_name in (role.name, role.arn)), None)
    return role is not None and all(allows(role, action, "*", {}) for action in _AGENT_PERMISSIONS)


def _has_endpoints(backend: Any, instance: Any, region: str) -> bool:  # noqa: ANN401 - moto is untyped
    """Return True if the VPC has the service's endpoints, so that the agent does not need internet access."""
    services = {
        point.service_name
        for point in backend.vpc_end_points.values()
        if point.vpc_id == instance.vpc_id and point.state != "deleted" and point.subnet_ids
    }
    return services >= {f"com.amazonaws.{region}.{name}" for name in _ENDPOINTS}
