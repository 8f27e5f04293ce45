"""Compare values and requests with a service model, and record differences in a file that no caller can swallow.

The tests and the connections to the rehearsal cloud install the checks of requests, and rehearsal servers check their
responses. Both are off unless the environment variable names a file. The tests set it and fail
if the file is not empty.
"""

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

from botocore.model import Shape

from cloudgpu.aws.session.session import client_hooks
from cloudgpu.files import open_descriptor

_ISO_8601: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:?\d\d)", re.ASCII)
_SHOWN_CHARACTERS: Final = 60
_UNLISTED_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    # Listed in botocore's own text for DescribeAccountAttributes, not in the enumeration.
    "AccountAttributeName": ("max-elastic-ips", "max-instances", "vpc-max-elastic-ips"),
    # "For an internet gateway, the state is `available` when attached": botocore's own text for the member.
    "AttachmentStatus": ("available",),
    # DescribeFleets returns it, and CreateFleet accepts it: the AWS CLI's example of describe-fleets, and "The AWS SDK
    # constant ... is incorrect" in hashicorp/terraform-provider-aws internal/service/ec2/consts.go.
    "FleetOnDemandAllocationStrategy": ("lowestPrice",),
    "SpotAllocationStrategy": ("lowestPrice",),
    # EC2's VpcEndpoint.State: the model has capitals, AWS sends none (the states that the Terraform AWS provider waits
    # for, hashicorp/terraform-provider-aws internal/service/ec2/consts.go).
    "State": ("available", "deleted", "deleting", "failed", "pending", "pendingAcceptance", "rejected"),
}
"""Name of an enumeration -> values that AWS sends or accepts although the service model does not list them."""
REPORT_VARIABLE: Final = "CLOUDGPU_SERVICE_MODEL_REPORT"
_SHOWN_MISMATCHES: Final = 20


def parse_timestamp(value: Any, style: str) -> Any:  # noqa: ANN401
    """Return the time that a text denotes in the format `iso8601`, `rfc822` or `unixTimestamp`.

    If it is not in that format, return it unchanged.
    """
    try:
        if style == "rfc822":
            return parsedate_to_datetime(value)
        if style == "unixTimestamp":
            return datetime.fromtimestamp(float(value)).astimezone()
        return datetime.fromisoformat(value) if _ISO_8601.fullmatch(value) else value
    except (ValueError, TypeError, OverflowError, OSError):
        return value


@dataclass(frozen=True)
class Mismatch:
    """A difference between a value and its shape. `path` names the member, such as `Reservations[0].OwnerId`."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'the body'}: {self.reason}"


def find_mismatches(shape: Shape, value: object, path: str = "") -> Iterator[Mismatch]:
    """Yield every difference between a value and its shape, in the order of the value's members."""
    return _CHECKS.get(shape.type_name, _check_string)(shape, value, path)


def unknown_member_name(shape: Any, wire_name: str) -> str:  # noqa: ANN401
    """Return the name under which a reader passes on a member that its structure does not have on the wire.

    A member may have another name on the wire. Its own name is then as unknown there as any other.
    """
    return wire_name if wire_name not in shape.members else f"<{wire_name}>"


def _check_structure(shape: Any, value: object, path: str) -> Iterator[Mismatch]:  # noqa: ANN401
    if getattr(shape, "is_document_type", False):
        return
    if not isinstance(value, Mapping):
        yield _wrong_type(shape, value, path)
        return
    members: Mapping[str, Shape] = shape.members
    for name, item in value.items():
        member_path = f"{path}.{name}" if path else str(name)
        member = members.get(name)
        if member is None:
            yield Mismatch(member_path, f"unknown member of {shape.name}")
        else:
            yield from find_mismatches(member, item, member_path)
    for name in shape.metadata.get("required", ()):
        if name not in value:
            yield Mismatch(f"{path}.{name}" if path else str(name), f"required member of {shape.name} is missing")
    if shape.is_tagged_union and len(value) != 1:
        yield Mismatch(path, f"the union {shape.name} has {len(value)} members instead of one")


def _check_list(shape: Any, value: object, path: str) -> Iterator[Mismatch]:  # noqa: ANN401
    if not isinstance(value, list | tuple):
        yield _wrong_type(shape, value, path)
        return
    yield from _check_size(shape, len(value), path, "items")
    for index, item in enumerate(value):
        yield from find_mismatches(shape.member, item, f"{path}[{index}]")


def _check_map(shape: Any, value: object, path: str) -> Iterator[Mismatch]:  # noqa: ANN401
    if not isinstance(value, Mapping):
        yield _wrong_type(shape, value, path)
        return
    yield from _check_size(shape, len(value), path, "entries")
    for key, item in value.items():
        yield from find_mismatches(shape.key, key, f"{path} key")
        yield from find_mismatches(shape.value, item, f"{path}[{str(key)[:_SHOWN_CHARACTERS]}]")


def _check_string(shape: Any, value: object, path: str) -> Iterator[Mismatch]:  # noqa: ANN401
    if not isinstance(value, str):
        yield _wrong_type(shape, value, path)
        return
    allowed = shape.metadata.get("enum", ())
    if allowed and value not in allowed and value not in _UNLISTED_VALUES.get(shape.name, ()):
        yield Mismatch(path, f"{_shown(shape, value)} is not a value of {shape.name}")
        return
    yield from _check_size(shape, len(value), path, "characters")
    pattern = _compiled(shape.metadata.get("pattern", ""))
    if pattern is not None and not pattern.fullmatch(value):
        yield Mismatch(path, f"{_shown(shape, value)} does not match the pattern of {shape.name}")


def _check_number(shape: Any, value: object, path: str) -> Iterator[Mismatch]:  # noqa: ANN401
    whole = shape.type_name in ("integer", "long")
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        yield _wrong_type(shape, value, path)
        return
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if (least is not None and value < least) or (most is not None and value > most):
        yield Mismatch(path, f"{value} is outside {least} to {most}, the range of {shape.name}")


def _check_boolean(shape: Shape, value: object, path: str) -> Iterator[Mismatch]:
    if not isinstance(value, bool):
        yield _wrong_type(shape, value, path)


def _check_timestamp(shape: Shape, value: object, path: str) -> Iterator[Mismatch]:
    if not isinstance(value, datetime):
        yield _wrong_type(shape, value, path)


def _check_blob(shape: Shape, value: object, path: str) -> Iterator[Mismatch]:
    if not isinstance(value, bytes | bytearray | str) and not hasattr(value, "read"):
        yield _wrong_type(shape, value, path)


_CHECKS: Final[Mapping[str, Callable[[Any, object, str], Iterator[Mismatch]]]] = {
    "structure": _check_structure,
    "list": _check_list,
    "map": _check_map,
    "integer": _check_number,
    "long": _check_number,
    "float": _check_number,
    "double": _check_number,
    "boolean": _check_boolean,
    "timestamp": _check_timestamp,
    "blob": _check_blob,
}


def _check_size(shape: Shape, size: int, path: str, unit: str) -> Iterator[Mismatch]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if (least is not None and size < least) or (most is not None and size > most):
        yield Mismatch(path, f"{size} {unit}, but {shape.name} has {least or 0} to {most}")


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile a pattern of a service model, which must match the whole value.

    Return None for an empty pattern, and for one that only Java understands, such as a Unicode category.
    """
    try:
        return re.compile(pattern, re.ASCII) if pattern else None
    except re.error:
        return None


def _wrong_type(shape: Shape, value: object, path: str) -> Mismatch:
    return Mismatch(path, f"{_shown(shape, value)} is not a {shape.type_name} ({shape.name})")


def _shown(shape: Shape, value: object) -> str:
    if shape.metadata.get("sensitive"):
        return "the value (not shown)"
    text = ascii(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


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
