"""Start Session Manager sessions: arguments of the plugin, and a token that never appears among them."""

import json

import pytest

from cloudgpu.aws.ec2 import ssh_access
from cloudgpu.errors import AuthError, ConnectError

REQUEST = {
    "Target": "i-0abc",
    "DocumentName": "AWS-StartSSHSession",
    "Parameters": {"portNumber": ["22"]},
}
ANSWER = {"SessionId": "ann-0123", "TokenValue": "very secret", "StreamUrl": "wss://ssmmessages.example/v1/data"}


def test_plugin_gets_session_token_by_variable_not_argument(scripted):
    scripted.stub("ssm").add_response("start_session", ANSWER, REQUEST)
    started = ssh_access.start_session(scripted, "i-0abc", 22, "research")
    variable, region, operation, profile, request, endpoint = started.arguments
    assert (variable, region, operation, profile) == (
        "AWS_SSM_START_SESSION_RESPONSE",
        "us-east-1",
        "StartSession",
        "research",
    )
    assert json.loads(request) == REQUEST
    assert endpoint == "https://ssm.us-east-1.amazonaws.com"
    assert json.loads(started.variables[variable]) == ANSWER
    assert "very secret" not in "".join(started.arguments) + repr(started)


def test_disconnected_ssm_agent_raises_connect_error(scripted):
    scripted.stub("ssm").add_client_error("start_session", "TargetNotConnected", "i-0abc is not connected.")
    with pytest.raises(ConnectError, match="the SSM agent on i-0abc is not connected") as caught:
        ssh_access.start_session(scripted, "i-0abc", 22)
    assert "can reach the ssm and ssmmessages endpoints" in caught.value.hint


def test_denied_start_session_raises_auth_error(scripted):
    scripted.stub("ssm").add_client_error("start_session", "AccessDeniedException", "not authorized", 400)
    with pytest.raises(AuthError):
        ssh_access.start_session(scripted, "i-0abc", 22)
