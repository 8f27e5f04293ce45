"""Compare requests with the service models, and record differences in a file, so that no caller can swallow them.

The tests and the connections to the rehearsal cloud install the checks, and rehearsal servers check their responses.
Both are off unless the environment variable names a file. The tests set it and fail if the file is not empty.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from cloudgpu.aws.service_model.values import Mismatch, find_mismatches
from cloudgpu.aws.session.session import client_hooks
from cloudgpu.files import open_descriptor

REPORT_VARIABLE: Final = "CLOUDGPU_SERVICE_MODEL_REPORT"
_SHOWN_MISMATCHES: Final = 20


def report_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file in which to record differences, or None if nothing is to be checked."""
    name = environ.get(REPORT_VARIABLE, "")
    return Path(name) if name else None


def record_mismatches(report: Path, call: str, mismatches: Iterable[Mismatch]) -> None:
    """Append one line per difference, in one write, because several processes share the file."""
    texts = [f"{call}: {mismatch}" for mismatch in mismatches]
    if not texts:
        return
    omitted = len(texts) - _SHOWN_MISMATCHES
    shown = texts[:_SHOWN_MISMATCHES] + ([f"{call}: {omitted} more"] if omitted > 0 else [])
    descriptor = open_descriptor(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, "".join(f"{text}\n" for text in shown).encode("ascii", "backslashreplace"))
    finally:
        os.close(descriptor)


def install_request_checks() -> None:
    """Check the requests of all clients that sessions of this process create from now on."""
    if _check_requests not in client_hooks:
        client_hooks.append(_check_requests)


def _check_requests(client: Any) -> None:  # noqa: ANN401 - a boto3 client
    """Record every difference between the client's requests and the input shapes of their operations."""
    report = report_file(os.environ)
    if report is None:
        return

    def check(params: Mapping[str, Any], model: Any, **_: object) -> None:  # noqa: ANN401 - botocore's model
        if model.input_shape is not None:
            mismatches = find_mismatches(model.input_shape, params)
            record_mismatches(report, f"request {model.service_model.service_name} {model.name}", mismatches)

    # Last, because botocore's own handlers complete the parameters: client tokens, encoded user data.
    client.meta.events.register_last("before-parameter-build", check)
