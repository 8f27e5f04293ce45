"""Load settings: read the flags, environment variables and files that they come from, merge and validate them."""

import configparser
import getpass
import ipaddress
import os
import re
import shlex
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from cloudgpu import bounds
from cloudgpu.errors import UsageError
from cloudgpu.files import KEY_BYTES, SAVE_AS_UTF8, SETTINGS_BYTES, NotUtf8Error, read_text, real_path
from cloudgpu.paths import Home
from cloudgpu.settings.fields import FIELDS, NAMES, Setting, Settings, env_name, unknown_setting
from cloudgpu.settings.tags import Tags, parse_tags, tags_text
from cloudgpu.targets import find, is_simulated
from cloudgpu.text import printable

PROJECT_FILE = "cloudgpu.toml"
_PATH_LIST = "allowed_paths"

_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
PROFILE_VARIABLES = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")
"""Variables that select an AWS profile, in the order in which boto3 reads them."""
_AWS_FILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}
"""Environment variable -> default path of AWS's files, in the order in which other AWS tools search them."""
_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class SourcedSetting:
    """A setting from one source, with the base directory for a relative path in its value."""

    setting: Setting
    base: Path


Source = Mapping[str, SourcedSetting]


def sources(flags: Mapping[str, str | None], environ: Mapping[str, str], cwd: Path) -> Sequence[Source]:
    """Return the settings from each source, in order of precedence."""
    return [_flags(flags, cwd), _variables(environ, cwd), *(_file(path) for path in _files(cwd))]


def path_list(text: str, base: Path) -> tuple[Path, ...]:
    """Return the paths in a colon-separated list. Relative paths start at `base`."""
    return tuple(base / os.path.expanduser(path) for path in text.split(os.pathsep) if path)  # noqa: PTH111  Path.expanduser raises


def user_file() -> Path:
    """Return the path of the user's settings file."""
    return Path(platformdirs.user_config_dir("cloudgpu")) / "config.toml"


def aws_region(environ: Mapping[str, str], profile: str, cwd: Path) -> Source:
    """Return the region that other AWS tools use: from AWS's environment variables, otherwise from the profile.

    Files that are missing, unreadable or malformed are skipped. If they matter, they are reported with the credentials.
    """
    for name in _REGION_VARIABLES:
        if environ.get(name):
            return {"region": SourcedSetting(Setting("region", environ[name], f"environment {name}"), cwd)}
    profile = profile or next(filter(None, map(environ.get, PROFILE_VARIABLES)), "default")
    for name, default in _AWS_FILES.items():
        path = Path(os.path.expanduser(environ.get(name) or default))  # noqa: PTH111  Path.expanduser raises
        region = _profiles(path).get(profile, {}).get("region", "")
        if region:
            return {"region": SourcedSetting(Setting("region", region, f"profile {profile} in {path}"), cwd)}
    return {}


def _profiles(path: Path) -> Mapping[str, Mapping[str, str]]:
    """Return the settings of each profile in one of AWS's files: `[NAME]` or `[profile NAME]`.

    Other sections, such as `[sso-session NAME]`, may have the name of a profile.
    """
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(read_text(path, KEY_BYTES * 4))
        titles = [(shlex.split(section), section) for section in parser.sections()]
    except (OSError, ValueError, configparser.Error):
        return {}
    return {words[-1]: parser[section] for words, section in titles if len(words) == 1 or words[:1] == ["profile"]}


def _flags(flags: Mapping[str, str | None], cwd: Path) -> Source:
    settings = {}
    for name, text in flags.items():
        if name not in FIELDS:
            raise unknown_setting(name, "the command line")
        if text is not None:
            settings[name] = SourcedSetting(Setting(name, text, f"flag --{name.replace('_', '-')}"), cwd)
    return settings


def _variables(environ: Mapping[str, str], cwd: Path) -> Source:
    # Shells and CI systems use an empty variable for "unset". Other CLOUDGPU_ variables are ignored, because cloudgpu
    # itself sets some in the environment of a run.
    values = {name: environ.get(env_name(name), "") for name in NAMES}
    return {
        name: SourcedSetting(Setting(name, text, f"environment {env_name(name)}"), cwd)
        for name, text in values.items()
        if text
    }


def _files(cwd: Path) -> Iterator[Path]:
    projects = (folder / PROJECT_FILE for folder in (cwd, *cwd.parents))
    nearest = next((path for path in projects if path.is_file()), None)
    if nearest:
        _reject_planted(nearest)
        yield nearest
    if user_file().is_file():
        yield user_file()


def _reject_planted(path: Path) -> None:
    """Reject another user's project file in a world-writable folder. Its settings could open port 22 to an attacker."""
    shared = path.parent.stat().st_mode & stat.S_IWOTH
    if shared and path.stat().st_uid not in (0, os.getuid()):
        message = f"{path} belongs to another user and is in a world-writable folder"
        raise UsageError(message, hint="use a folder that only you can write to, or remove the file")


def _file(path: Path) -> Source:
    try:
        document = tomllib.loads(read_text(path, SETTINGS_BYTES))
    except NotUtf8Error as err:
        raise UsageError(f"cannot read the settings file {path}: {err}", hint=SAVE_AS_UTF8) from err
    except (OSError, ValueError, RecursionError) as err:
        raise UsageError(f"cannot read the settings file {path}: {err}", hint="see docs/reference/settings.md") from err
    return {name: _written(name, value, path) for name, value in document.items()}


def _tags(value: object, path: Path) -> str:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        message = f"{path}: tags: expected a table of quoted texts"
        raise UsageError(message, hint='for example: tags = {CostCenter = "42"}')
    return tags_text(value)


def _written(name: str, value: object, path: Path) -> SourcedSetting:
    if name not in FIELDS:
        raise unknown_setting(name, str(path))
    if name == _PATH_LIST:
        return SourcedSetting(Setting(name, _written_paths(value, path), f"file {path}"), path.parent)
    if name == "tags":
        return SourcedSetting(Setting(name, _tags(value, path), f"file {path}"), path.parent)
    if not isinstance(value, str | int):
        raise UsageError(
            f"{path}: {name}: expected text, a whole number or true/false, got {value!r}",
            hint="see docs/reference/settings.md",
        )
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return SourcedSetting(Setting(name, text, f"file {path}"), path.parent)


def _written_paths(value: object, path: Path) -> str:
    """Return a list of paths as one text."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(entry, str) and entry for entry in listed):
        message = f"{path}: {_PATH_LIST}: expected a list of paths, got {value!r}"
        raise UsageError(message, hint=f'for example: {_PATH_LIST} = ["/data"]')
    text = os.pathsep.join(listed)
    folder = path.parent.resolve()
    real = {entry: real_path(entry) for entry in path_list(text, path.parent)}
    outside = [entry for entry, target in real.items() if target is None or not target.is_relative_to(folder)]
    if outside and path.resolve() != user_file().resolve():
        message = f"{path}: {_PATH_LIST}: {printable(str(outside[0]))} is outside the folder of this file"
        raise UsageError(message, hint=f"allow it in {user_file()}, or set {env_name(_PATH_LIST)}")
    return text


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
    if setting.name == "target" and find(setting.value) is None:
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
