"""Typed errors through a channel that carries only text: from a resource plugin through the Pulumi CLI and back.

Our own plugin ends every message with `[Kind]` or `[Kind/Code]`. Pulumi's AWS plugin quotes the AWS SDK for Go:
`..., StatusCode: 400, RequestID: 1b2c, api error VcpuLimitExceeded: You have requested more ...`.
"""

import re
from typing import Final

from cloudgpu import errors
from cloudgpu.aws.session.errors import refusal
from cloudgpu.errors import CloudError, CloudGpuError, LaunchError, ThrottledError

_OWN: Final = re.compile(r"(?P<message>.*?)\s*\[(?P<kind>[A-Z]\w*Error)(?:/(?P<code>[\w.:-]+))?\]", re.DOTALL)
_SDK: Final = re.compile(r"api error (?P<code>[\w.]+): (?P<message>[^\n]*)")
_STATUS: Final = re.compile(r"StatusCode: (?P<status>[0-9]+)")
_REQUEST: Final = re.compile(r"RequestID: (?P<id>[\w-]+)")
_LOST: Final = re.compile(
    r"no such host|connection refused|connection reset|i/o timeout|TLS handshake timeout"
    # the plugin itself ended: what it had under way may have had its effect
    r"|code = (?:Unavailable|Canceled|DeadlineExceeded)|error reading from server|transport is closing"
)
_CREDENTIALS: Final = re.compile(
    r"No valid credential sources|no EC2 IMDS role found|failed to refresh cached cred", re.I
)
_SERVER_FAULT: Final = "5"


def fault_text(err: CloudGpuError) -> str:
    """The error as one message that `read_fault` turns back."""
    code = getattr(err, "code", "")
    return f"{err.message} [{type(err).__name__}{'/' + code if code else ''}]"


def read_fault(text: str, doing: str = "") -> CloudGpuError | None:
    """The typed error that a message stands for; None when it tells of none.

    Args:
        text: A diagnostic of the Pulumi CLI.
        doing: What was tried, for messages that do not say it themselves.
    """
    own = _OWN.search(text)
    if own is not None:
        return _own(own["kind"], own["message"], own["code"] or "")
    sdk = _SDK.search(text)
    if sdk is not None:
        return _of_aws(text, sdk["code"], sdk["message"], doing)
    return _unanswered(text, doing)


def _own(kind: str, message: str, code: str) -> CloudGpuError:
    known = getattr(errors, kind, None)
    if not (isinstance(known, type) and issubclass(known, CloudGpuError)):
        return CloudError(message, code=code, hint="run it again; `cloudgpu --debug` says more")
    hint = refusal(code, "", "").hint if code else ""
    if issubclass(known, LaunchError | CloudError):
        return known(message, code=code, hint=hint)
    return known(message, hint=hint)


def _of_aws(text: str, code: str, message: str, doing: str) -> CloudGpuError:
    request, status = _REQUEST.search(text), _STATUS.search(text)
    request_id = request["id"] if request else ""
    err = refusal(code, message, doing or "carrying out the program", request_id=request_id)
    if status is not None and status["status"].startswith(_SERVER_FAULT) and type(err) is errors.BadRequestError:
        return ThrottledError(err.message, code=code, request_id=request_id, hint="AWS is in trouble; try later")
    return err


def _unanswered(text: str, doing: str) -> CloudGpuError | None:
    line = text.strip().splitlines()[-1] if text.strip() else ""
    told = f"{doing}: {line}" if doing else line
    if _CREDENTIALS.search(text):
        return errors.AuthError(told, hint="run `aws configure`, or set AWS_PROFILE")
    if _LOST.search(text):
        return CloudError(told, code="Unreachable", hint="check the network, then run it again")
    return None
