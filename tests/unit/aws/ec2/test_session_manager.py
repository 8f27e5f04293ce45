"""Sessions of Session Manager: what the plugin is told, and that the token stands in no argument."""

import json

import pytest

from cloudgpu.aws.ec2 import session_manager
from cloudgpu.errors import AuthError, ConnectError

REQUEST = {
    "Target": "i-0abc",
    "DocumentName": "AWS-StartSSHSession",
    "Parameters": {"portNumber": ["22"]},
}
ANSWER = {"SessionId": "ann-0123", "TokenValue": "very secret", "StreamUrl": "wss://ssmmessages.example/v1/data"}


def test_the_plugin_gets_the_answer_by_a_variable_and_never_by_argument(scripted):
    scripted.stub("ssm").add_response("start_session", ANSWER, REQUEST)
    started = session_manager.start(scripted, "i-0abc", 22, "research")
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


def test_an_agent_that_has_not_called_in_is_a_node_that_cannot_be_reached_yet(scripted):
    scripted.stub("ssm").add_client_error("start_session", "TargetNotConnected", "i-0abc is not connected.")
    with pytest.raises(ConnectError, match="the SSM agent on i-0abc is not connected") as caught:
        session_manager.start(scripted, "i-0abc", 22)
    assert "can reach the ssm and ssmmessages endpoints" in caught.value.hint


def test_who_may_not_start_sessions_is_told_at_once(scripted):
    scripted.stub("ssm").add_client_error("start_session", "AccessDeniedException", "not authorized", 400)
    with pytest.raises(AuthError):
        session_manager.start(scripted, "i-0abc", 22)
