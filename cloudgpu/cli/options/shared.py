"""Options that several commands share, defined once."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

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
