"""Read a JSON body by its shape, without dropping anything that the shape does not know."""

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from botocore.model import Shape

from cloudgpu.aws.service_model.timestamps import parse_timestamp
from cloudgpu.aws.service_model.values import unknown_member_name


def read_json_value(shape: Any, value: Any) -> Any:  # noqa: ANN401
    """Return the value with the member names and types of its shape.

    What does not fit the shape is returned as it is, for `find_mismatches` to report. Members that are null count as
    absent, as they do for botocore.
    """
    if shape.type_name == "structure" and isinstance(value, Mapping) and not shape.is_document_type:
        names = {member.serialization.get("name", name): name for name, member in shape.members.items()}
        values = {}
        for key, item in value.items():
            if item is not None and key in names:
                values[names[key]] = read_json_value(shape.members[names[key]], item)
            elif item is not None:
                values[unknown_member_name(shape, key)] = item
        return values
    if shape.type_name == "list" and isinstance(value, list):
        return [read_json_value(shape.member, item) for item in value]
    if shape.type_name == "map" and isinstance(value, Mapping):
        return {key: read_json_value(shape.value, item) for key, item in value.items()}
    return _read_scalar(shape, value)


def _read_scalar(shape: Shape, value: Any) -> Any:  # noqa: ANN401
    if shape.type_name == "timestamp":
        style = shape.serialization.get("timestampFormat", "unixTimestamp")
        if style != "unixTimestamp":
            return parse_timestamp(value, style)
        return value if isinstance(value, bool) or not isinstance(value, int | float) else _from_epoch(value)
    if shape.type_name == "blob":
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError):
            return [value]  # neither text nor bytes, so that it is reported
    return value


def _from_epoch(seconds: float) -> Any:  # noqa: ANN401
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return seconds
