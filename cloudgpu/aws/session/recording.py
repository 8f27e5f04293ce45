"""Record AWS API calls with their parameters and answers, for `scripts/live`.

Secrets are dropped before a call is written, so they never reach the disk: user data, key material, tokens, presigned
URLs, and every member that AWS's service model marks as sensitive. Identifiers are kept; `scripts/live` replaces them
when the command has finished.
"""

import json
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from threading import Lock
from typing import Any

from cloudgpu import files

RECORDING_VARIABLE = "CLOUDGPU_RECORD_CALLS"
"""Environment variable with the path of the file to which the calls of this process are appended."""
DROPPED = "(dropped)"
"""Replaces a secret, and bytes of any kind."""

_SECRET_MEMBERS = re.compile(
    r"userdata|keymaterial|secretaccesskey|sessiontoken|authorizationtoken|tokenvalue|streamurl|password(data)?"
    r"|plaintext|secretstring|privatekey",
    re.IGNORECASE,
)
"""Members that are secret although some service models do not mark them, without the separators in their names."""
_SECRET_TEXT = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|[?&](X-Amz-Signature|Signature|X-Amz-Security-Token)=")
"""Matches private keys and presigned URLs in any text."""
_PARAMETERS = "cloudgpu recorded parameters"
"""Key under which the parameters of a call are kept in botocore's context of that call."""


class CallRecorder:
    """A file of recorded calls: one JSON object a line, in the order in which AWS answered.

    Recording must not raise an exception, because it runs before the caller receives AWS's answer. After a write has
    failed, nothing more is recorded.
    """

    def __init__(self, path: Path) -> None:
        self._path: Path | None = path
        self._lock = Lock()

    def attach(self, client: Any, service: str) -> None:  # noqa: ANN401 - a boto3 client
        """Record the calls of a client."""
        region = client.meta.region_name

        def record(model: Any, context: Mapping[str, Any], answer: Mapping[str, Any]) -> None:  # noqa: ANN401
            parameters = context.get(_PARAMETERS, {})
            call = {"service": service, "region": region, "operation": model.name, "parameters": parameters}
            self._append({**call, **answer})

        def after(model: Any, http_response: Any, parsed: Any, context: Any, **_: Any) -> None:  # noqa: ANN401
            answer = {"status": http_response.status_code, "answer": without_secrets(parsed, model.output_shape)}
            record(model, context, answer)

        client.meta.events.register_last("before-parameter-build", keep_parameters)
        client.meta.events.register("after-call", after)

    def _append(self, call: Mapping[str, Any]) -> None:
        line = json.dumps(call).encode() + b"\n"
        with self._lock:
            if self._path is None:
                return
            try:
                with files.open_for_appending(self._path, 0o600) as recording:
                    recording.write(line)
            except OSError:
                self._path = None


def recorder_for(environ: Mapping[str, str]) -> CallRecorder | None:
    """Return the recorder that the environment asks for; None if it asks for none."""
    path = environ.get(RECORDING_VARIABLE, "")
    return CallRecorder(Path(path)) if path else None


def keep_parameters(params: Any, model: Any, context: Any, **_: Any) -> None:  # noqa: ANN401 - botocore's types
    """Keep the parameters of a call, without secrets, until AWS answers it. Handler of `before-parameter-build`."""
    context[_PARAMETERS] = without_secrets(params, model.input_shape)


def kept_parameters(context: Mapping[str, Any]) -> Any:  # noqa: ANN401 - parameters of any shape
    """Return what `keep_parameters` kept."""
    return context.get(_PARAMETERS, {})


def without_secrets(value: Any, shape: Any = None) -> Any:  # noqa: ANN401 - values and shapes of botocore
    """Return parameters or an answer as JSON values, without secrets.

    Args:
        value: Parameters of a call, or a parsed answer.
        shape: The value's shape in the service model; None for members that the model does not contain.
    """
    if shape is not None and shape.metadata.get("sensitive"):
        return DROPPED
    if isinstance(value, Mapping):
        return _members(value, shape)
    if isinstance(value, list | tuple):
        return [without_secrets(item, getattr(shape, "member", None)) for item in value]
    return _plain(value)


def _members(value: Mapping[Any, Any], shape: Any) -> dict[str, Any]:  # noqa: ANN401 - a shape of botocore
    # SSM's model marks the value of every parameter as sensitive, also of the public ones that name machine images.
    is_public_parameter = value.get("Type") in ("String", "StringList")
    kept = {}
    for name, item in value.items():
        described = None if is_public_parameter and name == "Value" else _member_shape(shape, name)
        secret = _SECRET_MEMBERS.fullmatch(re.sub(r"[^a-zA-Z]", "", str(name)))
        kept[str(name)] = DROPPED if secret else without_secrets(item, described)
    return kept


def _member_shape(shape: Any, name: object) -> Any:  # noqa: ANN401 - shapes of botocore
    kind = getattr(shape, "type_name", "")
    return shape.members.get(name) if kind == "structure" else getattr(shape, "value", None)


def _plain(value: Any) -> Any:  # noqa: ANN401 - a value of any type
    if isinstance(value, str):
        return DROPPED if _SECRET_TEXT.search(value) else value
    if isinstance(value, date):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | float) else DROPPED
