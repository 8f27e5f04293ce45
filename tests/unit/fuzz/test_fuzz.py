"""Every parser either accepts untrusted data or raises a typed error."""

from typing import Any

import pytest
from hypothesis import settings

from tests.unit.fuzz.regressions import REGRESSIONS
from tests.unit.fuzz.table import BY_NAME, TARGETS
from tests.unit.fuzz.target import Target, attack, check


def _param(target: Target) -> Any:
    # Not strict: the parser can be fixed without updating this table in the same change.
    marks = [pytest.mark.xfail(reason=target.known, strict=False, raises=BaseException)] if target.known else []
    return pytest.param(target, id=target.name.replace(" ", "-"), marks=marks)


@pytest.mark.parametrize("target", [_param(one) for one in TARGETS])
def test_untrusted_data_is_parsed_or_raises_a_typed_error(target: Target, pytestconfig: pytest.Config):
    attack(target, settings.get_profile("fuzz-full" if pytestconfig.getoption("--full") else "fuzz"))


@pytest.mark.parametrize(("name", "example"), REGRESSIONS, ids=lambda one: one[:40] if isinstance(one, str) else "")
def test_past_fuzz_failure_is_parsed_or_raises_a_typed_error(name: str, example: Any):
    check(BY_NAME[name], example)


def test_fuzz_target_names_are_unique():
    assert len(BY_NAME) == len(TARGETS)
