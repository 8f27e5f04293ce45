"""Foreign data meets typed errors or is understood: every parser, with data of every kind."""

from typing import Any

import pytest
from hypothesis import settings

from tests.unit.fuzz.regressions import REGRESSIONS
from tests.unit.fuzz.table import BY_NAME, TARGETS
from tests.unit.fuzz.target import Target, attack, check


def _param(target: Target) -> Any:
    # Not strict: whoever repairs the parser need not know of this table in the same change.
    marks = [pytest.mark.xfail(reason=target.known, strict=False, raises=BaseException)] if target.known else []
    return pytest.param(target, id=target.name.replace(" ", "-"), marks=marks)


@pytest.mark.parametrize("target", [_param(one) for one in TARGETS])
def test_foreign_data_is_refused_with_a_typed_error_or_understood(target: Target, pytestconfig: pytest.Config):
    attack(target, settings.get_profile("fuzz-full" if pytestconfig.getoption("--full") else "fuzz"))


@pytest.mark.parametrize(("name", "example"), REGRESSIONS, ids=lambda one: one[:40] if isinstance(one, str) else "")
def test_what_once_failed_is_refused_or_understood(name: str, example: Any):
    check(BY_NAME[name], example)


def test_targets_have_names_of_their_own():
    assert len(BY_NAME) == len(TARGETS)
