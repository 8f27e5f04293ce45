"""Parse values from outside: valid values, rejected values, and no overflow in later arithmetic."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu import bounds

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
HUGE = pytest.param(10**5000, id="huge")
LONG = "9" * 5000
NOT_ASCII = [
    "²",
    "١٢",
    "\uff11\uff12",
    "1_000",
    "+5",
    "0x10",
    " 5",
    "5 ",
    "5\n",
    "",
    "-",
    "--5",
    "1e3",
    "1.0",
    pytest.param(LONG, id="long"),
]


@pytest.mark.parametrize("text", NOT_ASCII)
def test_only_ascii_digits_form_whole_number(text):
    with pytest.raises(ValueError, match="expected a whole number"):
        bounds.parse_whole_number(text, -10, 10**9)


def test_whole_number_is_checked_against_range():
    assert (bounds.parse_whole_number("007"), bounds.parse_whole_number("-3", least=-5), bounds.port("65535")) == (
        7,
        -3,
        65535,
    )
    for text in ("0", "65536", "-1"):
        with pytest.raises(ValueError, match="from 1 to 65535"):
            bounds.port(text)


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, [1], 2**60, -1, HUGE])
def test_invalid_count_is_rejected(value):
    with pytest.raises(ValueError, match="expected a whole number"):
        bounds.checked_count(value)


NOT_MONEY = ["NaN", "Infinity", "-1", "1e300", 1e300, "1_0", "\u0661", True, None, "", HUGE, "1e99"]


@pytest.mark.parametrize("value", NOT_MONEY)
def test_invalid_usd_amount_is_rejected(value):
    with pytest.raises(ValueError, match="US dollars"):
        bounds.usd(value)


def test_usd_amount_is_exact_and_bounded():
    assert bounds.usd("31.212") == Decimal("31.212")
    assert bounds.usd("1E+2") == bounds.usd(100) == 100
    assert bounds.usd(0.5) == Decimal("0.5")
    assert bounds.usd(str(Decimal(10) / 3)) == Decimal(10) / 3
    with pytest.raises(ValueError, match="from 0 to 1,000,000,000"):
        bounds.usd("1000000000.01")
    with pytest.raises(ValueError, match="more than 0"):
        bounds.positive_usd("0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-21", datetime(2026, 11, 21, tzinfo=UTC)),
        ("2026-11-21T18:00Z", datetime(2026, 11, 21, 18, tzinfo=UTC)),
        ("2026-11-21 18:00:05.25", datetime(2026, 11, 21, 18, 0, 5, 250000, tzinfo=UTC)),
        ("2026-11-21T18:00:00+02:00", datetime(2026, 11, 21, 16, tzinfo=UTC)),
        ("2000-01-01", bounds.EARLIEST),
    ],
)
def test_time_is_parsed_as_utc(text, expected):
    found = bounds.parse_time(text)
    assert found == expected
    assert found.tzinfo == UTC


@pytest.mark.parametrize(
    "text",
    [
        "0001-01-01",
        "0001-01-01T00:00+23:59",
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59-23:59",
        "2100-01-01",
        "1999-12-31T23:59:59Z",
        "2026-13-01",
        "2026-11-21T25:00Z",
        "٢٠٢٦-11-21",
        "20261121",
        "2026-W47",
        "yesterday",
        "",
        5,
        None,
    ],
)
def test_invalid_time_is_rejected(text):
    with pytest.raises(ValueError, match="expected a time"):
        bounds.parse_time(text)


def test_tag_time_has_single_accepted_form():
    assert bounds.parse_tag_time("2026-11-21T18:00:00Z") == datetime(2026, 11, 21, 18, tzinfo=UTC)
    for text in ("2026-11-21", "2026-11-21T18:00Z", "2026-11-21T18:00:00+00:00", "2026-11-21 18:00:00Z"):
        with pytest.raises(ValueError, match="expected a time like"):
            bounds.parse_tag_time(text)


def test_date_and_epoch_are_parsed():
    assert bounds.parse_date("2026-11-21") == date(2026, 11, 21)
    assert bounds.parse_epoch("1795543200") == datetime.fromtimestamp(1795543200, UTC)
    with pytest.raises(ValueError, match="expected a date"):
        bounds.parse_date("2026-11-21T00:00Z")
    with pytest.raises(ValueError, match="whole number"):
        bounds.parse_epoch("99999999999999")


@pytest.mark.parametrize(
    "text", ["999999999999d", "367d", "8784h1s", "99999999999999999999d", pytest.param(LONG + "s", id="long")]
)
def test_duration_above_maximum_is_rejected(text):
    with pytest.raises(ValueError, match="expected a duration"):
        bounds.duration_s(text)


def test_durations_and_ages_are_parsed():
    assert bounds.duration_s(" 1d 12h ") == 129600
    assert bounds.duration_s("366d") == bounds.MAX_DURATION_S
    assert bounds.parse_age("7d", NOW) == NOW - timedelta(days=7)
    assert bounds.parse_age("5000d", NOW) == NOW - timedelta(days=5000)
    for text in ("99999999999999d", "9999d", "\u0667d", "0d"):
        with pytest.raises(ValueError, match="expected a duration"):
            bounds.parse_age(text, NOW)


def test_sizes_are_parsed_and_bounded():
    assert (bounds.size_gib("300GiB"), bounds.size_gib("2 TiB")) == (300, 2048)
    assert bounds.size_gib("1024TiB") == bounds.MAX_SIZE_GIB
    assert (bounds.size_gib("300GB"), bounds.size_gib("2 TB"), bounds.size_gib("1GB")) == (280, 1863, 1)
    assert [bounds.size_gib(text, round_down=True) for text in ("24GB", "1GB", "24GiB")] == [22, 1, 24]
    for text in ("1025TiB", "99999999999999999GiB", "300", "300MB", "٣GiB", "0GiB", "0GB"):
        with pytest.raises(ValueError, match="expected a size"):
            bounds.size_gib(text)


def refusal(parse, text):
    try:
        parse(text)
    except ValueError as err:
        return str(err)
    return None


@given(st.text())
def test_every_text_is_parsed_or_rejected_with_message(text):
    for parse in (
        bounds.parse_whole_number,
        bounds.usd,
        bounds.parse_time,
        bounds.duration_s,
        bounds.size_gib,
        bounds.parse_tag_time,
    ):
        message = refusal(parse, text)
        assert message is None or message.startswith("expected ")
        assert message is None or message.isprintable()


@given(st.datetimes(timezones=st.timezones()))
def test_every_accepted_time_allows_time_arithmetic(at):
    try:
        found = bounds.to_utc(at)
    except ValueError:
        assert not bounds.EARLIEST <= at < bounds.LATEST
    else:
        assert found + timedelta(seconds=bounds.MAX_DURATION_S) > found - (NOW - bounds.EARLIEST)


@pytest.mark.parametrize("char", ["\x00", "\x1b", "\r", "\x7f", "\x9b", "\u2028", "\ud800"])
def test_forbidden_character_is_named_with_position(char):
    fault = bounds.text_fault(f"ab{char}", lines=True)
    assert fault.startswith("character 3 is ")
    assert f"U+{ord(char):04X}" in fault


def test_line_breaks_are_accepted_only_where_allowed():
    assert bounds.text_fault("a\n\tb", lines=True) == ""
    assert bounds.text_fault("a\nb") == "character 2 is the control character U+000A"
    assert bounds.text_fault("naïve 日本 \u200d") == ""


def test_secret_value_rejects_only_nul_and_invalid_utf_8():
    assert bounds.value_fault("-----BEGIN\r\nKEY\x1b") == ""
    assert "NUL" in bounds.value_fault("a\0b")
    assert "UTF-8" in bounds.value_fault("caf\udce9")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\0b", "a\nb", "x" * 61, "\ud800"])
def test_invalid_file_name_is_rejected(name):
    assert not bounds.is_file_name(name)
    assert bounds.is_file_name("lab-1")
