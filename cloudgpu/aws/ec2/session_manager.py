"""AWS Session Manager: SSH to nodes that have neither a public address nor an open port."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudError, ConnectError

SSH_DOCUMENT: Final = "AWS-StartSSHSession"
_RESPONSE: Final = "AWS_SSM_START_SESSION_RESPONSE"
"""Name of the environment variable that contains the response of `StartSession`.

The plugin (1.2.497 and later) reads the response from this variable if its first argument is the variable's name. If
the response itself were the argument, the session token would be visible in process listings.
"""
_NOT_CONNECTED: Final = "TargetNotConnected"


@dataclass(frozen=True)
class SsmSession:
    """A session to which the plugin has not connected yet.

    Attributes:
        arguments: Arguments for `session-manager-plugin`, as the AWS CLI passes them.
        variables: Additional environment variables, which contain the session token.
    """

    arguments: tuple[str, ...]
    variables: Mapping[str, str]

    def __repr__(self) -> str:
        return f"SsmSession(arguments={self.arguments!r})"


def start(clients: Clients, instance_id: str, port: int, profile: str = "") -> SsmSession:
    """Start a Session Manager session that forwards SSH to a port on an instance."""
    request = {"Target": instance_id, "DocumentName": SSH_DOCUMENT, "Parameters": {"portNumber": [str(port)]}}
    ssm = clients.client("ssm")
    try:
        with convert_response_errors(f"starting a session to {instance_id}"):
            raw = ssm.start_session(**request)
            response = {key: raw[key] for key in ("SessionId", "TokenValue", "StreamUrl")}
    except CloudError as err:
        if err.code == _NOT_CONNECTED:
            raise ConnectError(f"the SSM agent on {instance_id} is not connected", hint=_NOT_CONNECTED_HINT) from err
        raise
    arguments = (_RESPONSE, clients.region, "StartSession", profile, json.dumps(request), ssm.meta.endpoint_url)
    return SsmSession(arguments, {_RESPONSE: json.dumps(response)})


_NOT_CONNECTED_HINT: Final = (
    "wait if the instance is still booting; otherwise check that its role has the Session Manager permissions, its "
    "image contains the SSM agent, and the instance can reach the ssm and ssmmessages endpoints"
)
