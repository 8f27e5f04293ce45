"""Simulate `ssm:StartSession` for SSH. The call fails unless the node's SSM agent can connect to the service."""

from collections.abc import Mapping
from typing import Any, Final

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends

from cloudgpu.rehearsal.aws_api.ec2.reachability import allowed_traffic
from cloudgpu.rehearsal.aws_api.iam_permissions import allows
from cloudgpu.rehearsal.aws_api.json_service import JsonError
from cloudgpu.rehearsal.aws_api.ssm_sessions import SsmSessions
from cloudgpu.rehearsal.state.records import records_of

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
