"""Every recorded error of AWS is provoked in a rehearsal cloud: code, HTTP status and message are identical."""

import re

import pytest

from tests.rehearsal.fidelity.outcomes import differences
from tests.rehearsal.fidelity.recorded_errors import RECORDED_ERRORS, RecordedError
from tests.rehearsal.fidelity.situations import Situation

pytestmark = pytest.mark.rehearsal


@pytest.mark.parametrize("error", RECORDED_ERRORS, ids=lambda error: error.name)
def test_error_is_identical_to_recorded_error(situation: Situation, error: RecordedError) -> None:
    assert differences(situation, error) == []


def test_every_recorded_error_names_its_source() -> None:
    source = re.compile(r"[\w.-]+/[\w.-]+(#\d+|@\w+ \S.*)")
    assert [error.name for error in RECORDED_ERRORS if not source.fullmatch(error.source)] == []
