"""Groups of options that several commands share, and the decorator that passes a group to a command as one value."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from typing import Any, TypedDict, get_type_hints

from typer.models import OptionInfo

from cloudgpu.cli.options.shared import (
    AllowOutside,
    EngineOption,
    InstallPulumi,
    OnInterrupt,
    Owner,
    PlanFile,
    PreferOption,
    Region,
    RetryUntilUp,
    Sets,
    SshCidr,
    Team,
    allowed_paths,
    option_seconds,
)
from cloudgpu.errors import UsageError


@dataclass(frozen=True)
class AssignmentOptions:
    """The options that change a recipe for this invocation only."""

    sets: Sets = None
    prefer: PreferOption = None
    allow_outside: AllowOutside = field(default=False, kw_only=True)

    @property
    def assignments(self) -> list[str]:
        """The assignments of `--set`, followed by the assignment of `--prefer` so that it takes precedence."""
        return [*(self.sets or []), *([f"resources.prefer={self.prefer}"] if self.prefer else [])]

    @property
    def allowed_paths(self) -> str | None:
        """The setting that `--allow-outside` overrides."""
        return allowed_paths(self.allow_outside)


@dataclass(frozen=True)
class PlanOptions(AssignmentOptions):
    """The options that select what `up` and `train` apply: a recipe with assignments, or a saved plan."""

    plan: PlanFile = None

    def require_recipe(self, recipe: str) -> None:
        """Reject a command line with neither a recipe nor a saved plan."""
        if self.plan is None and not recipe:
            raise UsageError("missing argument RECIPE", hint="specify a recipe, or a saved plan with --plan FILE")


class ProvisionSettings(TypedDict):
    """The settings that `ProvisionOptions` overrides, by name."""

    owner: str | None
    team: str | None
    ssh_cidr: str | None
    engine: str | None
    install_pulumi: str | None


@dataclass(frozen=True)
class ProvisionOptions:
    """The options of commands that create clusters."""

    retry_until_up: RetryUntilUp = ""
    on_interrupt: OnInterrupt = "ask"
    region: Region = None
    owner: Owner = None
    team: Team = None
    ssh_cidr: SshCidr = None
    engine: EngineOption = None
    install_pulumi: InstallPulumi = False

    @property
    def retry_s(self) -> int:
        """The duration of `--retry-until-up` in seconds, or 0 if the option was not given."""
        return option_seconds(self.retry_until_up, "--retry-until-up")

    @property
    def settings(self) -> ProvisionSettings:
        """The settings that the options override, except the region, which a saved plan may define."""
        return {
            "owner": self.owner,
            "team": self.team,
            "ssh_cidr": self.ssh_cidr,
            "engine": self.engine,
            "install_pulumi": "true" if self.install_pulumi else None,
        }


def option_words(group: Any, without: Collection[str] = ()) -> tuple[str, ...]:  # noqa: ANN401 - any dataclass of options
    """Return the command line of the options that differ from their defaults.

    Args:
        group: A dataclass of options. Its fields may be dataclasses.
        without: Names of fields to leave out. Arguments are always left out.
    """
    hints, words = get_type_hints(type(group), include_extras=True), list[str]()
    for option_field in fields(group):
        value = getattr(group, option_field.name)
        if option_field.name in without:
            continue
        if is_dataclass(value):
            words += option_words(value, without)
            continue
        (option,) = hints[option_field.name].__metadata__
        if isinstance(option, OptionInfo) and value != option_field.default:
            name = str(option.default)  # in an annotation, the first argument is a name
            for each in value if isinstance(value, list) else [value]:
                words += [name] if each is True else [name, str(each)]
    return tuple(words)


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command declare a dataclass as a parameter. typer sees each field of the dataclass as a separate parameter.

    Fields may themselves be dataclasses. The help lists options in the order of the parameters and fields.
    """
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups = {parameter.name: parameter.annotation for parameter in parameters if is_dataclass(parameter.annotation)}

    @wraps(command)
    def call_with_groups(**values: Any) -> None:  # noqa: ANN401 - typer passes the value of every option
        instances = {name: _take(group, values) for name, group in groups.items()}
        command(**instances, **values)

    expanded = [option for parameter in parameters for option in _expand(parameter)]
    call_with_groups.__signature__ = inspect.Signature(expanded)  # type: ignore[attr-defined]
    return call_with_groups


def _expand(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    if not is_dataclass(parameter.annotation):
        return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    hints = get_type_hints(parameter.annotation, include_extras=True)
    return [
        option
        for field in fields(parameter.annotation)
        for option in _expand(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
            )
        )
    ]


def _take(group: Any, values: dict[str, Any]) -> Any:  # noqa: ANN401 - a dataclass, and an instance of it
    """Remove the values of a group's fields from `values` and return an instance of the group with these values."""
    hints = get_type_hints(group)
    return group(
        **{
            field.name: _take(hints[field.name], values) if is_dataclass(hints[field.name]) else values.pop(field.name)
            for field in fields(group)
        }
    )
