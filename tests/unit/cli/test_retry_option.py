"""`--retry-until-up [DURATION]`: an option with an optional value."""

import pytest

from cloudgpu.cli.options import expand_retry_option, option_seconds
from cloudgpu.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["up", "demo", "--retry-until-up"], ["up", "demo", "--retry-until-up", "24h"]),
        (["up", "--retry-until-up", "demo"], ["up", "--retry-until-up", "24h", "demo"]),
        (["up", "--retry-until-up", "--yes", "demo"], ["up", "--retry-until-up", "24h", "--yes", "demo"]),
        (["up", "--retry-until-up", "1d12h", "demo"], ["up", "--retry-until-up", "1d12h", "demo"]),
        (["up", "--retry-until-up=2h", "demo"], ["up", "--retry-until-up=2h", "demo"]),
        (["up", "demo", "--retry-until-up", "2 hours"], ["up", "demo", "--retry-until-up", "2 hours"]),
        (["up", "demo"], ["up", "demo"]),
    ],
)
def test_retry_until_up_duration_defaults_to_24_hours(typed, told):
    assert expand_retry_option(typed) == told


def test_retry_duration_is_parsed_as_seconds():
    assert option_seconds("1h30m", "--retry-until-up") == 5400
    assert option_seconds("", "--retry-until-up") == 0


def test_invalid_retry_duration_error_contains_the_option():
    with pytest.raises(UsageError, match="--retry-until-up 90: expected a duration") as caught:
        option_seconds("90", "--retry-until-up")
    assert caught.value.hint == "for example: --retry-until-up 2h"
