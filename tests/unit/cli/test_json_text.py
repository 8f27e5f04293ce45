"""Documents are strictly valid JSON."""

import json
import math

import pytest

from cloudgpu.cli.terminal.output import json_text
from cloudgpu.cli.terminal.screen import Screen


def _refuse(word: str) -> None:
    raise ValueError(word)


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf])
def test_non_finite_number_is_written_as_null(figure: float):
    text = json_text({"runs": [{"metrics": {"loss": {"value": figure, "seen": (figure, 1.5)}}}]})
    found = json.loads(text, parse_constant=_refuse)
    assert found == {"runs": [{"metrics": {"loss": {"value": None, "seen": [None, 1.5]}}}]}


def test_screen_document_is_valid_json(capsys: pytest.CaptureFixture[str]):
    Screen(json_mode=True).document({"loss": math.nan, "rate": 0.5, "name": "NaN"})
    found = json.loads(capsys.readouterr().out, parse_constant=_refuse)
    assert found == {"loss": None, "rate": 0.5, "name": "NaN"}
