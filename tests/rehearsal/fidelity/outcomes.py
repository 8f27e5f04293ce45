"""Provoke recorded errors in a rehearsal cloud and compare what comes back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError

from tests.rehearsal.fidelity.recorded_errors import RECORDED_ERRORS, RecordedError
from tests.rehearsal.fidelity.situations import Situation


@dataclass(frozen=True)
class Score:
    """How many recorded cases the rehearsal cloud reproduces; the others by name, with their reason or difference."""

    passed: int
    limited: Mapping[str, str]
    failed: Mapping[str, str]


def score_errors(situation: Situation, errors: Iterable[RecordedError] = RECORDED_ERRORS) -> Score:
    """Provoke every recorded error and count those that come back exactly as recorded."""
    found = [(error.name, "; ".join(differences(situation, error))) for error in errors]
    failed = {name: text for name, text in found if text}
    return Score(len(found) - len(failed), {}, failed)


def differences(situation: Situation, error: RecordedError) -> list[str]:
    """Provoke an error and return what differs from the recording, one line each."""
    values = error.given(situation)
    call = getattr(situation.client(error.service, error.region), xform_name(error.operation))
    try:
        call(**_filled(error.request, values))
    except ClientError as err:
        found = {**err.response["Error"], "status": err.response["ResponseMetadata"]["HTTPStatusCode"]}
    else:
        return ["the call succeeded"]
    expected = {"Code": error.code, "status": error.status, "Message": error.message, **error.details}
    return [
        f"{name}: {found.get(name)!r} instead of {value!r}"
        for name, value in _filled(expected, values).items()
        if found.get(name) != value
    ]


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    """Replace `{name}` in all texts of a nested value; all other braces stay."""
    if isinstance(value, str):
        for name, text in values.items():
            value = value.replace(f"{{{name}}}", text)
        return value
    if isinstance(value, Mapping):
        return {key: _filled(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    return value
