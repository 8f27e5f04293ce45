"""Parse `shutdown`, `systemd-run` and timer unit files, and recognize commands that power off or reboot a node."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

Action = Literal["off", "reboot"]
SHUTDOWN_UNIT = "shutdown"
"""Unit name of the pending `shutdown`; at most one exists, as on a real system."""

_UNITS_S = {
    "": 1, "s": 1, "sec": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hr": 3600, "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400,
    "w": 604800, "week": 604800, "weeks": 604800, "ms": 0.001, "msec": 0.001, "us": 0.000001,
}  # fmt: skip
_LONGEST_S = 1e11
_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")
_MOMENT = re.compile(
    r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,?\s+)?(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ]+(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.\d+)?)?)?\s*(?:UTC|Z)?"
)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(?:UTC)?")


@dataclass(frozen=True)
class Shutdown:
    """A `shutdown` command: the action and its delay in seconds. `cancel` cancels a pending shutdown."""

    action: Action = "off"
    delay_s: float = 0.0
    cancel: bool = False


@dataclass(frozen=True)
class Unit:
    """A transient `systemd-run` unit, or a timer from a unit file. If `due` is None, the command runs immediately."""

    name: str
    command: tuple[str, ...]
    due: datetime | None
    wait: bool = False


def parse_shutdown(arguments: Sequence[str], now: datetime) -> Shutdown:
    """Parse the arguments of `shutdown`."""
    flags = [argument for argument in arguments if argument.startswith("-")]
    times = [argument for argument in arguments if not argument.startswith("-")]
    if any(flag in ("-c", "--cancel") for flag in flags):
        return Shutdown(cancel=True)
    action: Action = "reboot" if any(flag in ("-r", "--reboot") for flag in flags) else "off"
    return Shutdown(action, _delay_s(times[0] if times else "+1", now))


def _delay_s(text: str, now: datetime) -> float:
    if text in ("now", "+0"):
        return 0.0
    if re.fullmatch(r"\+?\d+", text):
        return _bounded(float(text.lstrip("+")) * 60, text)
    return max(0.0, (parse_time(text, now) - now).total_seconds())


def immediate_action(command: Sequence[str]) -> Action | None:
    """Return the action of a command that immediately powers off or reboots the node, or None for other commands."""
    words = [word.rpartition("/")[2] if index == 0 else word for index, word in enumerate(command)]
    while words[:1] == ["sudo"]:
        words = [word for word in words[1:] if not word.startswith("-")]
    verb, rest = (words[0], words[1:]) if words else ("", [])
    if verb in ("poweroff", "halt") or (verb == "systemctl" and {"poweroff", "halt"} & set(rest)):
        return "off"
    if verb == "reboot" or (verb == "systemctl" and "reboot" in rest):
        return "reboot"
    if verb == "shutdown" and "now" in rest:
        return "reboot" if "-r" in rest else "off"
    return None


def parse_systemd_run(arguments: Sequence[str], now: datetime) -> Unit:
    """Parse the arguments of `systemd-run`."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if not equals and name in _TAKES_VALUE and rest:
            value = rest.pop(0)
        options.setdefault(_LONG.get(name, name), value)
    due = _due(options, now)
    unit = options.get("--unit", "run-transient").removesuffix(".service").removesuffix(".timer")
    if not rest and due is None:
        message = "Command line to execute required."
        raise ValueError(message)
    command = tuple(rest) or ("systemctl", "start", f"{unit}.service")
    return Unit(unit, command, due, wait=bool({"--wait", "--pipe", "--pty", "--scope"} & options.keys()))


_LONG = {"-u": "--unit", "-p": "--property", "-t": "--pty", "-P": "--pipe", "-G": "--collect"}
_TAKES_VALUE = frozenset(
    [
        "--unit",
        "-u",
        "--property",
        "-p",
        "--on-calendar",
        "--on-active",
        "--on-boot",
        "--on-startup",
        "--timer-property",
        "--description",
        "--slice",
        "--uid",
        "--gid",
        "--nice",
        "--working-directory",
        "--setenv",
        "-E",
        "--service-type",
        "-M",
        "-H",
    ]
)


def _due(options: Mapping[str, str], now: datetime) -> datetime | None:
    if "--on-calendar" in options:
        return parse_time(options["--on-calendar"], now)
    for name in ("--on-active", "--on-boot", "--on-startup"):
        if name in options:
            return now + parse_time_span(options[name])
    return None


def parse_timer_unit(name: str, units: Mapping[str, str], now: datetime) -> Unit | None:
    """Return the timer that `systemctl start` or `systemctl enable --now` starts.

    Return None if the timer's unit file is missing or sets no supported time.
    """
    values = _settings(units.get(name, ""))
    stem = name.removesuffix(".timer")
    service = _settings(units.get(f"{stem}.service", ""))
    command = tuple(service.get("ExecStart", f"systemctl start {stem}.service").lstrip("-@:+!").split())
    if "OnCalendar" in values:
        return Unit(stem, command, parse_time(values["OnCalendar"], now))
    for key in ("OnActiveSec", "OnBootSec", "OnStartupSec"):
        if key in values:
            return Unit(stem, command, now + parse_time_span(values[key]))
    return None


def _settings(text: str) -> dict[str, str]:
    pairs = (
        line.partition("=") for line in text.splitlines() if "=" in line and not line.lstrip().startswith(("#", ";"))
    )
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_time(text: str, now: datetime) -> datetime:
    """Parse an absolute UTC time in the syntax of systemd or `shutdown`. A time of day means its next occurrence."""
    text = text.strip()
    if text == "now":
        return now
    if text.startswith("@"):
        try:
            return datetime.fromtimestamp(float(text[1:]), UTC)
        except (OverflowError, OSError) as err:
            message = f"Failed to parse calendar specification: {text}"
            raise ValueError(message) from err
    match = _MOMENT.fullmatch(text)
    if match:
        year, month, day, hour, minute, second = (int(value or 0) for value in match.groups())
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    match = _CLOCK.fullmatch(text)
    if not match:
        message = f"Failed to parse calendar specification: {text}"
        raise ValueError(message)
    hour, minute, second = (int(value or 0) for value in match.groups())
    today = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
    return today if today > now else today + timedelta(days=1)


def parse_time_span(text: str) -> timedelta:
    """Parse a systemd time span such as `90` (seconds), `5min` or `1h 30m`."""
    total, at = 0.0, 0
    text = text.strip().lower()
    while at < len(text):
        match = _SPAN.match(text, at)
        if not match or match[2] not in _UNITS_S:
            break
        total += float(match[1]) * _UNITS_S[match[2]]
        at = match.end()
    if not text or at < len(text):
        message = f"Failed to parse time span: {text}"
        raise ValueError(message)
    return timedelta(seconds=_bounded(total, text))


def _bounded(seconds: float, text: str) -> float:
    """Return the delay in seconds, or raise an error if it is too long for date arithmetic."""
    if not seconds <= _LONGEST_S:
        message = f"Failed to parse time span: {text[:40]} is too long"
        raise ValueError(message)
    return seconds
