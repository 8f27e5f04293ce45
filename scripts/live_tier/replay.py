"""Run a `cloudgpu` command whose AWS calls are answered from a recording: `python -m live_tier.replay FILE COMMAND...`.

No request is sent. A call is answered by the first unused recorded call of the same operation, region and parameters.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

from botocore import handlers

from cloudgpu.aws.service_model import install_request_checks
from cloudgpu.aws.session.recording import DROPPED, keep_parameters, kept_parameters
from cloudgpu.cli.main import entry
from live_tier.evidence import Call, calls_in
from live_tier.placeholders import PATTERN


class NotRecordedError(Exception):
    """The command made a call that the recording does not contain."""


class Replay:
    """The recorded calls that were not yet used, in order, by operation and region."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls: dict[tuple[str, str], list[Call]] = defaultdict(list)
        self._lock = Lock()
        for call in calls:
            self._calls[call["operation"], call["region"]].append(call)

    def answer(self, model: Any, context: Any, **_: Any) -> tuple[Any, Any]:  # noqa: ANN401 - botocore's types
        """Answer a call in place of AWS. Handler of botocore's `before-call`."""
        region, parameters = context["client_region"], comparable(kept_parameters(context), model.input_shape)
        with self._lock:
            waiting = self._calls[model.name, region]
            # cloudgpu's own literals, such as the networks of a new VPC, have placeholders in the recording.
            for form in (str, blurred):
                for call in waiting:
                    if form(comparable(call["parameters"], model.input_shape)) == form(parameters):
                        waiting.remove(call)
                        answer = restored(call["answer"], model.output_shape)
                        return SimpleNamespace(status_code=call["status"], headers={}), answer
        message = f"the recording has no answer to {model.name} in {region} with {parameters}"
        raise NotRecordedError(message)


def comparable(value: Any, shape: Any) -> Any:  # noqa: ANN401 - values and shapes of botocore
    """Return parameters without what differs from run to run: times, and tokens that make a call idempotent."""
    if shape is not None and (shape.type_name == "timestamp" or shape.metadata.get("idempotencyToken")):
        return DROPPED
    if isinstance(value, dict):
        members = getattr(shape, "members", {}) if getattr(shape, "type_name", "") == "structure" else {}
        return {name: comparable(item, members.get(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [comparable(item, getattr(shape, "member", None)) for item in value]
    return value


def blurred(parameters: Any) -> str:  # noqa: ANN401 - parameters of any shape
    """Return parameters as text in which every identifier is replaced by its kind."""
    return PATTERN.sub(lambda match: f"({match.lastgroup})", json.dumps(parameters, sort_keys=True))


def restored(value: Any, shape: Any) -> Any:  # noqa: ANN401 - values and shapes of botocore
    """Return an answer with the types that botocore's parsers give it: times instead of text."""
    kind = getattr(shape, "type_name", "")
    if kind == "string" and isinstance(value, dict):
        # IAM's policy documents: botocore decoded them before they were recorded, and decodes every answer.
        return quote(json.dumps(value))
    if isinstance(value, dict):
        members = shape.members if kind == "structure" else {}
        other = getattr(shape, "value", None)
        return {name: restored(item, members.get(name, other)) for name, item in value.items()}
    if isinstance(value, list):
        return [restored(item, getattr(shape, "member", None)) for item in value]
    if kind == "timestamp" and isinstance(value, str):
        return datetime.fromisoformat(value)
    return value


def main() -> None:
    """Install the replay for every botocore client of this process, then run the command."""
    _, path, *arguments = sys.argv
    replay = Replay(calls_in(Path(path)))
    # Last, because botocore stops at the first handler that answers, and cloudgpu's own handlers must run too.
    last = handlers.REGISTER_LAST
    handlers.BUILTIN_HANDLERS.extend(
        [("before-parameter-build", keep_parameters, last), ("before-call", replay.answer, last)]
    )
    install_request_checks()
    sys.argv = ["cloudgpu", *arguments]
    entry()


if __name__ == "__main__":
    main()
