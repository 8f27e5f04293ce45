"""Parsing of every command and timer that stops a node."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.rehearsal.nodes.servers import power_commands

_NOW = datetime(2026, 11, 21, 2, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-h", "now"], power_commands.Shutdown("off", 0)),
        (["now"], power_commands.Shutdown("off", 0)),
        ([], power_commands.Shutdown("off", 60)),
        (["-P", "+30", "good bye"], power_commands.Shutdown("off", 1800)),
        (["-h", "5"], power_commands.Shutdown("off", 300)),
        (["-r", "+1"], power_commands.Shutdown("reboot", 60)),
        (["-h", "03:30"], power_commands.Shutdown("off", 5400)),
        (["01:00"], power_commands.Shutdown("off", 23 * 3600)),
        (["-c"], power_commands.Shutdown(cancel=True)),
    ],
)
def test_shutdown_arguments_are_parsed(arguments, expected):
    assert power_commands.parse_shutdown(arguments, _NOW) == expected


@pytest.mark.parametrize("text", ["tomorrow", "+x", "", "25:99", "2026-13-01", "*-*-* 05:00"])
def test_invalid_shutdown_time_is_rejected(text):
    with pytest.raises(ValueError, match=r"."):
        power_commands.parse_shutdown([text], _NOW)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("systemctl poweroff", "off"), ("/usr/sbin/poweroff", "off"), ("halt -f", "off"), ("shutdown -h now", "off"),
        ("sudo -n systemctl poweroff -i", "off"), ("systemctl reboot", "reboot"), ("reboot -f", "reboot"),
        ("shutdown -r now", "reboot"), ("shutdown -h +5", None), ("systemctl stop x", None), ("ls", None), ("", None),
    ],
)  # fmt: skip
def test_immediate_power_commands_are_recognized(command, expected):
    assert power_commands.immediate_action(command.split()) == expected


def test_systemd_run_parses_absolute_and_relative_times():
    due = datetime(2026, 11, 21, 5, 0, 0, tzinfo=UTC)
    words = ["--no-block", "--unit=cloudgpu-expiry", "--on-calendar=2026-11-21 05:00:00 UTC"]
    words += ["--timer-property=AccuracySec=1s", "--property=DefaultDependencies=no", "systemctl", "poweroff"]
    assert power_commands.parse_systemd_run(words, _NOW) == power_commands.Unit(
        "cloudgpu-expiry", ("systemctl", "poweroff"), due
    )
    words = ["-u", "x.service", "--on-active", "1h 30min", "--", "poweroff", "--force"]
    expected = power_commands.Unit("x", ("poweroff", "--force"), _NOW + timedelta(minutes=90))
    assert power_commands.parse_systemd_run(words, _NOW) == expected
    assert power_commands.parse_systemd_run(["--wait", "ls", "-l"], _NOW) == power_commands.Unit(
        "run-transient", ("ls", "-l"), None, wait=True
    )
    with pytest.raises(ValueError, match="Command line"):
        power_commands.parse_systemd_run(["--unit=x"], _NOW)


def test_timer_unit_file_is_parsed():
    units = {
        "end.timer": "[Timer]\n# comment = no\nOnCalendar=2026-11-21 05:00:00 UTC\n",
        "end.service": "[Service]\nExecStart=-/usr/bin/systemctl poweroff\n",
    }
    found = power_commands.parse_timer_unit("end.timer", units, _NOW)
    assert found == power_commands.Unit(
        "end", ("/usr/bin/systemctl", "poweroff"), datetime(2026, 11, 21, 5, tzinfo=UTC)
    )
    assert power_commands.parse_timer_unit("other.timer", units, _NOW) is None


@given(st.integers(0, 10**6), st.sampled_from(["s", "sec", "min", "h", "d", ""]))
def test_time_span_is_number_times_unit(number, unit):
    seconds = {"s": 1, "sec": 1, "min": 60, "h": 3600, "d": 86400, "": 1}[unit]
    assert power_commands.parse_time_span(f" {number} {unit} ") == timedelta(seconds=number * seconds)


@given(st.datetimes(timezones=st.just(UTC)))
def test_formatted_time_is_parsed_back(moment):
    moment = moment.replace(microsecond=0, year=2000 + moment.year % 100, day=1)
    assert power_commands.parse_time(moment.strftime("%Y-%m-%d %H:%M:%S UTC"), _NOW) == moment
    assert power_commands.parse_time(moment.strftime("%Y-%m-%dT%H:%M:%SZ"), _NOW) == moment


@given(st.text(max_size=30))
def test_random_time_text_is_parsed_or_raises_value_error(text):
    for read in (power_commands.parse_time_span, lambda value: power_commands.parse_time(value, _NOW)):
        try:
            assert read(text) is not None
        except ValueError:
            continue


@pytest.mark.parametrize("text", ["@1e20", "@-1e20", "@inf", "@nan"])
def test_out_of_range_epoch_time_is_rejected(text):
    with pytest.raises(ValueError, match=r"."):
        power_commands.parse_time(text, _NOW)
