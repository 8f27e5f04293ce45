"""Options that several commands share, defined once, and the decorator that passes groups of them as values."""

import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

import typer
from typer.models import OptionInfo

from cloudgpu import bounds
from cloudgpu.cli import completion
from cloudgpu.errors import UsageError
from cloudgpu.targets import TARGETS, Target, find


def _known_target(text: str) -> Target:
    """Return the name of a target, which may be in the table of targets or registered by another package."""
    if find(text) is None:
        message = f"{text!r} is not one of {', '.join(map(repr, TARGETS))}."
        raise ValueError(message)
    return text


On = Annotated[
    Target | None,
    typer.Option(
        "--on",
        parser=_known_target,
        metavar=f"<{'|'.join(TARGETS)}>",
        autocompletion=lambda incomplete: [name for name in TARGETS if name.startswith(incomplete)],
        help="AWS, the simulated AWS on this machine, or your own hosts. Default: the `target` setting.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout; progress goes to stderr.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Print every progress message and all rank output, instead of updating the display in place.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip confirmation prompts.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a recipe parameter, or a field by its dotted name. Repeatable.",
        autocompletion=completion.assignments,
    ),
]
AllowOutside = Annotated[
    bool,
    typer.Option(
        "--allow-outside",
        help="Let the recipe upload files outside its folder. Default: only those in the `allowed_paths` setting.",
    ),
]
PreferOption = Annotated[
    Literal["order", "price", "speed", "region", "spot"] | None,
    typer.Option("--prefer", help="Order in which to try offers. Same as --set resources.prefer=..."),
]
OptionalRecipe = Annotated[
    str,
    typer.Argument(
        metavar="[RECIPE]",
        help="Recipe folder, file or name. Omit with --plan.",
        autocompletion=completion.recipes,
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="FILE", help="Apply a plan saved by `plan --out`. Fails if its inputs have changed."
    ),
]
RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="Recipe folder, file or name.",
        autocompletion=completion.recipes,
    ),
]
Region = Annotated[
    str | None,
    typer.Option("--region", help="Region, if the recipe does not set one. Default: the `region` setting."),
]
OneRegion = Annotated[str | None, typer.Option("--region", help="Region to use. Default: the `region` setting.")]
Owner = Annotated[str | None, typer.Option("--owner", help="Owner to bill. Default: the `owner` setting.")]
Team = Annotated[str | None, typer.Option("--team", help="Team to bill. Default: the `team` setting.")]
SshCidr = Annotated[
    str | None,
    typer.Option("--ssh-cidr", help="CIDR block that may connect to port 22. Default: the `ssh_cidr` setting."),
]
EngineOption = Annotated[
    Literal["direct", "pulumi"] | None,
    typer.Option("--engine", help="Provisioning engine for new clusters. Default: the `engine` setting."),
]
InstallPulumi = Annotated[
    bool,
    typer.Option("--install-pulumi", help="Download the Pulumi CLI if it is not installed."),
]
OnInterrupt = Annotated[
    Literal["ask", "leave", "end"],
    typer.Option(
        "--on-interrupt",
        help="After Ctrl-C: `leave` the cluster running, `end` (delete) the cluster, or `ask` what to do. "
        "Without a terminal, `ask` leaves the cluster running.",
    ),
]
RetryUntilUp = Annotated[
    str,
    typer.Option(
        "--retry-until-up",
        metavar="[DURATION]",
        help="If no candidate has capacity, keep retrying all candidates for DURATION, or for 24h if it is omitted.",
    ),
]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]",
        help="Run ID. Default: the latest running run, or the latest run if none is running.",
        autocompletion=completion.runs,
    ),
]

RETRY_UNTIL_UP = "24h"
"""Default duration of `--retry-until-up`."""
_DURATION = re.compile(r"([0-9]+[dhms])+")


def expand_retry_option(arguments: list[str]) -> list[str]:
    """Insert the default duration after a bare `--retry-until-up`, because typer requires a value for the option."""
    completed: list[str] = []
    for position, argument in enumerate(arguments):
        completed.append(argument)
        following = arguments[position + 1] if position + 1 < len(arguments) else ""
        if argument == "--retry-until-up" and not _DURATION.fullmatch(following) and not following[:1].isdigit():
            completed.append(RETRY_UNTIL_UP)
    return completed


def integer_parser(least: int = 0, most: int = bounds.MAX_COUNT) -> Callable[[str | int], int]:
    """Return a parser for options whose value is an integer from `least` to `most`, in ASCII digits.

    typer's own `int` also accepts `1_000`, `+5` and non-ASCII digits.
    """

    def parse(text: str | int) -> int:
        try:
            return text if isinstance(text, int) else bounds.parse_whole_number(text, least, most)
        except ValueError as err:
            raise typer.BadParameter(str(err)) from None

    parse.__name__ = "INTEGER"  # the type that `--help` shows
    return parse


def option_seconds(duration: str, option: str) -> int:
    """Return the duration of an option in seconds, or 0 if the option was not given."""
    try:
        return bounds.duration_s(duration) if duration else 0
    except ValueError as err:
        raise UsageError(f"{option} {duration}: {err}", hint=f"for example: {option} 2h") from None


def allowed_paths(allow_outside: bool) -> str | None:
    """Return the `allowed_paths` setting for the value of `--allow-outside`: every path, or None for the setting."""
    return "/" if allow_outside else None


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
