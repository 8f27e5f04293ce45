"""Format JSON documents."""

import json
import math
from typing import Any


def json_text(value: object) -> str:
    """Return the JSON text of a document; numbers that JSON cannot represent (NaN, infinity) become null.

    `json.dumps` would write the bare words NaN and Infinity, which other JSON parsers reject. The metrics of a
    diverged training run may contain such numbers.
    """
    return json.dumps(_without_nan(value), indent=2, ensure_ascii=True, allow_nan=False)


def _without_nan(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        return {key: _without_nan(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
