"""Read `Pulumi.yaml`: the name of a project, its entry point and its default settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from cloudgpu import files
from cloudgpu.decoding import MALFORMED, describe_error
from cloudgpu.errors import BadRequestError, UnsupportedError


@dataclass(frozen=True)
class Project:
    """A Pulumi project on disk."""

    name: str
    directory: Path
    main: Path
    """Python file to run."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Default configuration values by `namespace:key`."""


def read_project(directory: Path) -> Project:
    """Read the project in this directory."""
    source = directory.resolve() / "Pulumi.yaml"
    try:
        content: Any = YAML(typ="safe").load(files.read_text(source, files.SETTINGS_BYTES))
    except OSError as err:
        message = f"no Pulumi project in {directory}: {source.name} cannot be read ({err})"
        raise BadRequestError(message, hint="specify the directory that contains Pulumi.yaml") from err
    except (YAMLError, *MALFORMED) as err:
        message = f"{source} is not valid YAML: {describe_error(err)}"
        raise BadRequestError(message, hint="correct the file") from err
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        message = f"{source} has no `name`"
        raise BadRequestError(message, hint="add the project's `name` to the file")
    _refuse_other_languages(source, content.get("runtime"))
    name = content["name"]
    return Project(name, source.parent, _main(source, content), _defaults(name, content.get("config")))


def _refuse_other_languages(source: Path, runtime: object) -> None:
    language = runtime.get("name") if isinstance(runtime, dict) else runtime
    if language != "python":
        message = f"{source}: the direct engine does not support runtime {language!r}, only python"
        raise UnsupportedError(message, hint="use the pulumi engine")


def _main(source: Path, content: Mapping[str, Any]) -> Path:
    entry = source.parent / str(content.get("main") or ".")
    main = entry / "__main__.py" if entry.is_dir() else entry
    if not main.is_file():
        message = f"{source}: the program {main.name} does not exist"
        raise BadRequestError(message, hint="correct `main`, or create __main__.py")
    return main


def _defaults(project: str, config: object) -> dict[str, str]:
    if not isinstance(config, dict):
        return {}
    defaults: dict[str, str] = {}
    for key, entry in config.items():
        value = entry.get("value", entry.get("default")) if isinstance(entry, dict) else entry
        if value is not None:
            name = key if ":" in key else f"{project}:{key}"
            defaults[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return defaults
