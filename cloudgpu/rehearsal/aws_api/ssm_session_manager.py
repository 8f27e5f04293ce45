"""`ssm:StartSession` for SSH: only where the node's agent could really have called in."""

from collections.abc import Mapping
from typing import Any, Final

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends

from cloudgpu.rehearsal.aws_api.ec2.reachability import reach_of
from cloudgpu.rehearsal.aws_api.iam_permissions import allows
from cloudgpu.rehearsal.aws_api.json_service import JsonError
from cloudgpu.rehearsal.aws_api.ssm_sessions import Sessions
from cloudgpu.rehearsal.state.records import records_of

ACTIONS: Final = frozenset({"StartSession"})
_DOCUMENT = "AWS-StartSSHSession"
_NEEDED = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)
_ENDPOINTS = ("ssm", "ssmmessages")


def start_session(sessions: Sessions, region: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """A channel to port 22 of a node.

    Raises:
        JsonError: As AWS refuses it. Why an agent has not called in it does not say, and neither do we.
    """
    if params.get("DocumentName") != _DOCUMENT:
        raise JsonError(
            "InvalidDocument", f"The rehearsal cloud does not simulate document {params.get('DocumentName')}."
        )
    if (params.get("Parameters") or {}).get("portNumber", ["22"]) != ["22"]:
        raise JsonError("InvalidParameters", "Only port 22 of a node is simulated.")
    target = str(params.get("Target"))
    if not _connected(sessions, region, target):
        raise JsonError("TargetNotConnected", f"{target} is not connected.")
    channel = sessions.open(target)
    return {"SessionId": channel.session_id, "TokenValue": channel.token, "StreamUrl": channel.url}


def _connected(sessions: Sessions, region: str, target: str) -> bool:
    """Whether the agent runs, may call in by the node's role, and gets out to the service."""
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    instance = next((one for one in backend.all_instances() if one.id == target and one.state == "running"), None)
    record = records_of(backend).nodes.get(target)
    if instance is None or record is None or not sessions.agent_calls(target):
        return False
    return _may_call(record.role) and (reach_of(backend, instance).egress or _has_endpoints(backend, instance, region))


def _may_call(role_name: str) -> bool:
    roles = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].roles.values()
    role = next((one for one in roles if role_name in (one.name, one.arn)), None)
    return role is not None and all(allows(role, action, "*", {}) for action in _NEEDED)


def _has_endpoints(backend: Any, instance: Any, region: str) -> bool:  # noqa: ANN401 - moto is untyped
    """The service's own endpoints in the VPC stand in for a way to the internet."""
    here = {
        one.service_name
        for one in backend.vpc_end_points.values()
        if one.vpc_id == instance.vpc_id and one.state != "deleted" and one.subnet_ids
    }
    return here >= {f"com.amazonaws.{region}.{name}" for name in _ENDPOINTS}
