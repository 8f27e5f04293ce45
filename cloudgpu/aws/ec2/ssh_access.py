"""What AWS provides for SSH to a node: host key fingerprints in its console output, and Session Manager sessions.

The bootstrap prints the fingerprints as its first action, and cloud-init after all scripts of the user data.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cloudgpu.aws.session.errors import convert_errors, convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudError, CloudGpuError, ConnectError

SSH_DOCUMENT: Final = "AWS-StartSSHSession"
_RESPONSE: Final = "AWS_SSM_START_SESSION_RESPONSE"
"""Name of the environment variable that contains the response of `StartSession`.

The plugin (1.2.497 and later) reads the response from this variable if its first argument is the variable's name. If
the response itself were the argument, the session token would be visible in process listings.
"""
_NOT_CONNECTED: Final = "TargetNotConnected"
_NOT_CONNECTED_HINT: Final = (
    "wait if the instance is still booting; otherwise check that its role has the Session Manager permissions, its "
    "image contains the SSM agent, and the instance can reach the ssm and ssmmessages endpoints"
)
_FINGERPRINT = re.compile(r"\bSHA256:[A-Za-z0-9+/]{43}=?")
_KEY = re.compile(r"\b(?:ssh|ecdsa)-[a-z0-9-]+ ((?:[A-Za-z0-9+/]{4})+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)(?=\s)")
_BEGIN = "-----BEGIN SSH HOST KEY"
_NO_LATEST = frozenset({"UnsupportedOperation", "Unsupported", "InvalidParameterCombination", "InvalidParameterValue"})
"""Error codes that EC2 returns for `Latest=True` if the instance does not use the Nitro System."""


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


def start_session(clients: Clients, instance_id: str, port: int, profile: str = "") -> SsmSession:
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


@dataclass(frozen=True)
class ConsoleOutput:
    """The last 64 KiB of a node's console.

    Attributes:
        live: True if the output is complete up to now. Without the Nitro System, EC2 posts it minutes after the boot.
    """

    text: str
    live: bool

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The `SHA256:...` fingerprints of the node's host keys; empty until the console contains them."""
        return parse_fingerprints(self.text)


def read_console(clients: Clients, instance_id: str) -> ConsoleOutput:
    """Return a node's console output, which EC2 keeps for about an hour after the node was terminated."""
    try:
        return ConsoleOutput(_console(clients, instance_id, Latest=True), live=True)
    except CloudGpuError as err:
        if getattr(err, "code", "") not in _NO_LATEST:
            raise
    return ConsoleOutput(_console(clients, instance_id), live=False)


def parse_fingerprints(console: str) -> tuple[str, ...]:
    """Return the distinct fingerprints in a node's console output, in their original order.

    Fingerprints are read from the last FINGERPRINTS block between cloud-init's markers, because it comes from the last
    boot that created keys. If this block is missing, incomplete or empty, the fingerprints are computed from the last
    KEYS block instead. All other output is ignored, because any program can print to the console.
    """
    text = console.replace("\r", "")
    printed = [fingerprint.rstrip("=") for fingerprint in _FINGERPRINT.findall(_last_block(text, "FINGERPRINTS"))]
    computed = [_fingerprint(blob) for blob in _KEY.findall(_last_block(text, "KEYS"))]
    return tuple(dict.fromkeys(printed or computed))


def _last_block(text: str, what: str) -> str:
    """Return the last block of this kind, or an empty string if there is none or cloud-init is still printing it."""
    start = text.rfind(f"-----BEGIN SSH HOST KEY {what}-----")
    end = text.find(f"-----END SSH HOST KEY {what}-----", start)
    return text[start:end] if 0 <= start < end else ""


def _fingerprint(blob: str) -> str:
    digest = hashlib.sha256(base64.b64decode(blob)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _console(clients: Clients, instance_id: str, **options: bool) -> str:
    with convert_errors(f"reading the console of {instance_id}"):
        output = clients.client("ec2").get_console_output(InstanceId=instance_id, **options).get("Output") or ""
    return output if _BEGIN in output or not output else _decoded(str(output))


def _decoded(output: str) -> str:
    """Decode the console output again, in case an endpoint encoded it twice. Botocore has already decoded it once."""
    try:
        return base64.b64decode(output, validate=True).decode("utf-8", errors="replace")
    except (binascii.Error, ValueError):
        return output
