"""Merge the sources of settings, then validate and convert each value."""

import getpass
import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import platformdirs

from cloudgpu import bounds
from cloudgpu.errors import UsageError
from cloudgpu.paths import Home
from cloudgpu.settings.fields import FIELDS, NAMES, Setting, Settings
from cloudgpu.settings.sources import Source, SourcedSetting, aws_region, path_list, sources
from cloudgpu.settings.tags import Tags, parse_tags
from cloudgpu.targets import is_simulated

_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def load(*, flags: Mapping[str, str | None], environ: Mapping[str, str], cwd: Path) -> Settings:
    """Load the settings for one command. Precedence: flag, environment, project file, user file, default.

    Except for a rehearsal, which is independent of AWS, AWS's own region precedes the default region.

    Args:
        flags: Values from the command line by setting name; None if the flag is absent.
        environ: The process environment.
        cwd: Directory where the search for the project file starts; also the base for relative paths in flags and
            environment variables.
    """
    ordered = list(sources(flags, environ, cwd))
    if not is_simulated(_text("target", ordered)):
        ordered.append(aws_region(environ, _text("aws_profile", ordered), cwd))
    fallback = SourcedSetting(Setting("home", platformdirs.user_data_dir("cloudgpu"), "default"), cwd)
    home = _convert(_first_source("home", ordered) or fallback)
    defaults = _defaults(Home(home), environ, cwd)
    effective = [
        _first_source(name, ordered) or SourcedSetting(Setting(name, defaults[name], "default"), cwd) for name in NAMES
    ]
    values: dict[str, Any] = {value.setting.name: _convert(value) for value in effective}
    return Settings(**values, origins=tuple(_with_absolute_path(value.setting, values) for value in effective))


def _text(name: str, ordered: Sequence[Source]) -> str:
    """Return a setting as written, or its fixed default."""
    found = _first_source(name, ordered)
    return str(FIELDS[name].metadata["default"]) if found is None else found.setting.value


def _first_source(name: str, ordered: Sequence[Source]) -> SourcedSetting | None:
    return next((source[name] for source in ordered if name in source), None)


def _defaults(home: Home, environ: Mapping[str, str], cwd: Path) -> dict[str, str]:
    """Return the default of every setting by name; some depend on the state home or the login name."""
    fixed = {name: str(setting.metadata["default"]) for name, setting in FIELDS.items()}
    return fixed | {
        "home": str(home.root),
        "owner": _login_name(environ),
        "ledger_url": f"sqlite:///{home.ledger_db}",
        "ssh_key": str(home.ssh_key),
        "env_cache": str(home.envs),
        "hosts": str(_hosts(home, cwd)),
    }


def _hosts(home: Home, cwd: Path) -> Path:
    """Return the path of the inventory in the working directory if it exists, otherwise in the state home."""
    here = cwd / home.hosts.name
    return here if here.is_file() else home.hosts


def _login_name(environ: Mapping[str, str]) -> str:
    names = (environ.get(key, "") for key in ("LOGNAME", "USER", "USERNAME"))
    name = next((name for name in names if name), "") or _account_name()
    return re.sub(r"[^\w.:/=+@-]", "-", name)[:128]


def _account_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user ID may have no name, as in some containers
        return f"uid-{os.getuid()}"


def _convert(sourced: SourcedSetting) -> Any:  # noqa: ANN401  the type is the field's
    """Convert a value to the type of its field."""
    setting = sourced.setting
    _check(setting)
    readers: Mapping[Any, Callable[[], Any]] = {
        Path: lambda: sourced.base / os.path.expanduser(setting.value),  # noqa: PTH111  Path.expanduser raises
        int: lambda: bounds.parse_whole_number(setting.value),
        bool: lambda: _parsed_bool(setting),
        tuple[Path, ...]: lambda: path_list(setting.value, sourced.base),
        Tags: lambda: _parsed_tags(setting),
    }
    expected_type = FIELDS[setting.name].type
    return readers[expected_type]() if expected_type in readers else setting.value


def _check(setting: Setting) -> None:
    meta = FIELDS[setting.name].metadata
    if not setting.value:
        if meta["default"] or meta["shown_default"]:
            raise _invalid(setting, "must not be empty")
        return
    if not setting.value.isprintable():
        raise _invalid(setting, "contains a control character")
    if meta["form"] and not re.fullmatch(meta["form"], setting.value):
        raise _invalid(setting, f"invalid value {setting.shown!r}")
    if setting.name == "bastion" and not setting.value.endswith("]"):
        _check_port(setting)
    if setting.name == "ssh_cidr":
        _check_network(setting)


def _check_network(setting: Setting) -> None:
    try:
        ipaddress.ip_network(setting.value)
    except ValueError as err:
        raise _invalid(setting, str(err)) from err


def _check_port(setting: Setting) -> None:
    _, colon, port = setting.value.rpartition(":")
    try:
        if colon:
            bounds.port(port)
    except ValueError as err:
        raise _invalid(setting, str(err)) from err


def _parsed_bool(setting: Setting) -> bool:
    try:
        return _TRUTH[setting.value.lower()]
    except KeyError:
        raise _invalid(setting, f"{setting.value!r} is neither true nor false") from None


def _parsed_tags(setting: Setting) -> Tags:
    try:
        return parse_tags(setting.value)
    except ValueError as err:
        raise _invalid(setting, str(err)) from err


def _invalid(setting: Setting, problem: str) -> UsageError:
    like = FIELDS[setting.name].metadata["like"]
    hint = f"use a valid value, for example {setting.name} = {like}" if like else ""
    return UsageError(f"{setting.origin}: {setting.name}: {problem}", hint=hint)


def _with_absolute_path(setting: Setting, values: Mapping[str, Any]) -> Setting:
    """Return the setting with its value made absolute if the value is a path or a list of paths."""
    value = values[setting.name]
    if isinstance(value, tuple):
        return Setting(setting.name, os.pathsep.join(map(str, value)), setting.origin)
    return Setting(setting.name, str(value), setting.origin) if isinstance(value, Path) else setting
