"""Encode typed errors as text and decode them again, because the Pulumi CLI forwards plugin errors only as text.

cloudgpu's plugin appends `[Kind]` or `[Kind/Code]` to every message. Pulumi's AWS plugin includes the message of the
AWS SDK for Go:
`..., StatusCode: 400, RequestID: 1b2c, api error VcpuLimitExceeded: You have requested more ...`.
"""

import re
from typing import Final

from cloudgpu import errors
from cloudgpu.aws.session.errors import error_from_code
from cloudgpu.errors import CloudError, CloudGpuError, LaunchError, ThrottledError

_OWN: Final = re.compile(r"(?P<message>.*?)\s*\[(?P<kind>[A-Z]\w*Error)(?:/(?P<code>[\w.:-]+))?\]", re.DOTALL)
_SDK: Final = re.compile(r"api error (?P<code>[\w.]+): (?P<message>[^\n]*)")
_STATUS: Final = re.compile(r"StatusCode: (?P<status>[0-9]+)")
_REQUEST: Final = re.compile(r"RequestID: (?P<id>[\w-]+)")
_LOST: Final = re.compile(
    r"no such host|connection refused|connection reset|i/o timeout|TLS handshake timeout"
    # gRPC errors after the plugin exited. An operation in progress may still have taken effect.
    r"|code = (?:Unavailable|Canceled|DeadlineExceeded)|error reading from server|transport is closing"
)
_CREDENTIALS: Final = re.compile(
    r"No valid credential sources|no EC2 IMDS role found|failed to refresh cached cred", re.I
)
_SERVER_FAULT: Final = "5"


def encode_error(err: CloudGpuError) -> str:
    """Return the error's message with its type and code appended, for `decode_error`."""
    code = getattr(err, "code", "")
    return f"{err.message} [{type(err).__name__}{'/' + code if code else ''}]"


def decode_error(text: str, doing: str = "") -> CloudGpuError | None:
    """Return the typed error that a message describes, or None if the message is not recognized.

    Args:
        text: A diagnostic from the Pulumi CLI.
        doing: The attempted operation. Prefixed to messages that do not come from cloudgpu's plugin.
    """
    encoded = _OWN.search(text)
    if encoded is not None:
        return _plugin_error(encoded["kind"], encoded["message"], encoded["code"] or "")
    sdk = _SDK.search(text)
    if sdk is not None:
        return _aws_error(text, sdk["code"], sdk["message"], doing)
    return _connection_error(text, doing)


def _plugin_error(kind: str, message: str, code: str) -> CloudGpuError:
    error_class = getattr(errors, kind, None)
    if not (isinstance(error_class, type) and issubclass(error_class, CloudGpuError)):
        return CloudError(message, code=code, hint="run the command again with `cloudgpu --debug` for details")
    hint = error_from_code(code, "", "").hint if code else ""
    if issubclass(error_class, LaunchError | CloudError):
        return error_class(message, code=code, hint=hint)
    return error_class(message, hint=hint)


def _aws_error(text: str, code: str, message: str, doing: str) -> CloudGpuError:
    request, status = _REQUEST.search(text), _STATUS.search(text)
    request_id = request["id"] if request else ""
    err = error_from_code(code, message, doing or "running the program", request_id=request_id)
    if status is not None and status["status"].startswith(_SERVER_FAULT) and type(err) is errors.BadRequestError:
        return ThrottledError(
            err.message, code=code, request_id=request_id, hint="try again later: AWS reported an internal error"
        )
    return err


def _connection_error(text: str, doing: str) -> CloudGpuError | None:
    line = text.strip().splitlines()[-1] if text.strip() else ""
    message = f"{doing}: {line}" if doing else line
    if _CREDENTIALS.search(text):
        return errors.AuthError(message, hint="run `aws configure`, or set AWS_PROFILE")
    if _LOST.search(text):
        return CloudError(message, code="Unreachable", hint="check the network, then run the command again")
    return None
