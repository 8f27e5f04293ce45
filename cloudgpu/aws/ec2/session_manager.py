"""AWS Session Manager: SSH to nodes without a public address or an open port."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cloudgpu.aws.session.errors import answered
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudError, ConnectError

DOCUMENT: Final = "AWS-StartSSHSession"
_RESPONSE: Final = "AWS_SSM_START_SESSION_RESPONSE"
"""Where the plugin reads the answer of `StartSession` when its first argument says so (from 1.2.497 on): the token in
it must not stand in a list of processes."""
_NOT_CONNECTED: Final = "TargetNotConnected"


@dataclass(frozen=True)
class Started:
    """A session that is waiting for its plugin.

    Attributes:
        arguments: Arguments of `session-manager-plugin`, as the AWS CLI passes them.
        variables: Additional environment variables; they contain the session token.
    """

    arguments: tuple[str, ...]
    variables: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Started(arguments={self.arguments!r})"


def start(clients: Clients, instance_id: str, port: int, profile: str = "") -> Started:
    """Begin a session that leads to a port of an instance.

    Raises:
        ConnectError: The instance's SSM agent has not called in, or not yet.
        AuthError: The caller may not start sessions.
        CloudError: AWS refused, or cannot be reached.
    """
    request = {"Target": instance_id, "DocumentName": DOCUMENT, "Parameters": {"portNumber": [str(port)]}}
    ssm = clients.client("ssm")
    try:
        with answered(f"starting a session to {instance_id}"):
            answer = ssm.start_session(**request)
            response = {key: answer[key] for key in ("SessionId", "TokenValue", "StreamUrl")}
    except CloudError as err:
        if err.code == _NOT_CONNECTED:
            raise ConnectError(f"the SSM agent of {instance_id} is not connected", hint=_WHY) from err
        raise
    arguments = (_RESPONSE, clients.region, "StartSession", profile, json.dumps(request), ssm.meta.endpoint_url)
    return Started(arguments, {_RESPONSE: json.dumps(response)})


_WHY: Final = (
    "it may still be booting; else its role lacks the Session Manager permissions, its image has no SSM agent, or it "
    "has no way out to the endpoints ssm and ssmmessages"
)
