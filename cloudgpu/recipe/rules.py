"""The validation rules that the schema cannot express. Each rule is a small pure function.

A rule names the sections that it reads and is skipped if one of these sections is invalid.
"""

import re
from collections.abc import Iterator, Set
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Final

from cloudgpu.recipe import data_rules, launch_rules, template
from cloudgpu.recipe.launch_rules import samples_per_step, script_problems, setup_problems
from cloudgpu.recipe.problem import FieldPath, Problem, suggestion
from cloudgpu.recipe.schema import Environment, Recipe, RecipeRule, rule

_LONGEST_WORK_S: Final = 100 * 366 * 86400
_LONGEST_PATTERN: Final = 4096


def rule_problems(recipe: Recipe, *, without: Set[str] = frozenset()) -> Iterator[Problem]:
    """Yield the problems that the rules find. Rules that read a section listed in `without` are skipped."""
    for each in RULES:
        if not each.sections & without:
            yield from each.find(recipe)


@rule("resources")
def _hardware_problems(recipe: Recipe) -> Iterator[Problem]:
    set_fields = [name for name in ("gpu", "any_of", "instance_type") if getattr(recipe.resources, name)]
    if not set_fields:
        yield Problem(("resources",), "requires one of gpu, any_of or instance_type, for example gpu: V100:8")
    for name in set_fields[1:]:
        yield Problem(
            ("resources", name), f"{set_fields[0]} is already set; set only one of gpu, any_of and instance_type"
        )


@rule("resources")
def _reservation_problems(recipe: Recipe) -> Iterator[Problem]:
    market, reservation = recipe.resources.market, recipe.resources.reservation
    if market in ("reservation", "capacity-block") and reservation is None:
        yield Problem(("resources", "reservation"), f"required with market: {market}, for example cr-0a1b2c3d4e5f60718")
    if reservation is not None and market in ("on-demand", "spot"):
        yield Problem(
            ("resources", "reservation"),
            f"applies only to market: reservation or capacity-block, but market is {market}",
        )


@rule("resources")
def _gpu_format_problems(recipe: Recipe) -> Iterator[Problem]:
    gpus: list[tuple[FieldPath, str]] = []
    if recipe.resources.gpu:
        gpus.append((("resources", "gpu"), recipe.resources.gpu))
    for index, name in enumerate(recipe.resources.any_of):
        if "." not in name:
            gpus.append((("resources", "any_of", index), name))
    for path, name in gpus:
        if not re.fullmatch(r"[A-Za-z0-9-]+:[1-9][0-9]?", name):
            yield Problem(path, f"expected a GPU model and count per node, for example V100:8, got {name}")


@rule("resources")
def _zone_problems(recipe: Recipe) -> Iterator[Problem]:
    for index, zone in enumerate(recipe.resources.zones):
        if recipe.resources.regions and zone[:-1] not in recipe.resources.regions:
            listed = ", ".join(recipe.resources.regions)
            yield Problem(("resources", "zones", index), f"{zone} is not in any of resources.regions ({listed})")


@rule("environment", "rehearsal")
def _environment_problems(recipe: Recipe) -> Iterator[Problem]:
    yield from _container_or_python_problems(recipe.environment, ("environment",))
    if recipe.rehearsal and recipe.rehearsal.environment:
        yield from _container_or_python_problems(recipe.rehearsal.environment, ("rehearsal", "environment"))


def _container_or_python_problems(environment: Environment, path: FieldPath) -> Iterator[Problem]:
    if environment.container and environment.python:
        yield Problem((*path, "python"), "environment.container is already set; set either container or python")
    for index, name in enumerate(environment.secrets):
        if name in environment.env:
            message = f"{name} is also set in env, but recipes must not contain secret values"
            yield Problem((*path, "secrets", index), message)


@rule("outputs", "checkpoint")
def _output_path_problems(recipe: Recipe) -> Iterator[Problem]:
    paths: list[tuple[FieldPath, PurePosixPath]] = [
        (("outputs", index), PurePosixPath(name)) for index, name in enumerate(recipe.outputs)
    ]
    if recipe.checkpoint:
        paths.append((("checkpoint", "path"), recipe.checkpoint.path))
    for path, relative in paths:
        # `~` and variables are not expanded, so they would be looked for below the work directory.
        outside = relative.is_absolute() or ".." in relative.parts or not relative.parts
        if outside or relative.parts[0].startswith(("~", "$")):
            yield Problem(path, f"expected a path below the work directory, got {relative}")


@rule("params")
def _param_name_problems(recipe: Recipe) -> Iterator[Problem]:
    for name in recipe.params:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
            yield Problem(
                ("params", name),
                "expected a name of letters, digits, dashes and underscores, not starting with a digit or dash",
            )
        if name in (*template.RUN_NAMES, "checkpoint", "hostfile"):
            yield Problem(("params", name), f"{{{name}}} is a built-in placeholder; choose another name")


@rule("launch", "params", "data", "storage", "checkpoint")
def _command_problems(recipe: Recipe) -> Iterator[Problem]:
    launch = recipe.launch
    if launch.command and launch.run:
        yield Problem(("launch", "run"), "launch.command is already set; set either command or run")
    elif not launch.command and not launch.run:
        yield Problem(("launch", "command"), "expected a command, got nothing; write one, or a script in launch.run")
    elif launch.run:
        yield from script_problems(launch.run, recipe, ("launch", "run"))
    else:
        for message in template.placeholder_problems(launch.command, template.placeholders(recipe)):
            yield Problem(("launch", "command"), message)


@rule("setup", "launch", "params", "data", "storage", "checkpoint", "rehearsal")
def _setup_problems(recipe: Recipe) -> Iterator[Problem]:
    yield from setup_problems(recipe.setup, recipe, ("setup",))
    if recipe.rehearsal and recipe.rehearsal.setup:
        yield from setup_problems(recipe.rehearsal.setup, recipe, ("rehearsal", "setup"))


@rule("launch", "params")
def _batch_problems(recipe: Recipe) -> Iterator[Problem]:
    batch = recipe.launch.global_batch
    if not isinstance(batch, str):
        return
    unknown = template.placeholder_problems(batch, tuple(recipe.params))
    messages = list(unknown) or ([] if samples_per_step(recipe) else [f"expected a whole number, got {batch}"])
    for message in messages:
        yield Problem(("launch", "global_batch"), message)


@rule("rehearsal", "params", "data", "storage", "checkpoint")
def _rehearsal_command_problems(recipe: Recipe) -> Iterator[Problem]:
    rehearsal = recipe.rehearsal
    if rehearsal is None:
        return
    if rehearsal.command is not None and rehearsal.run is not None:
        yield Problem(("rehearsal", "run"), "rehearsal.command is already set; set either command or run")
    elif rehearsal.run is not None:
        yield from script_problems(rehearsal.run, recipe, ("rehearsal", "run"))
    elif rehearsal.command is not None:
        for message in template.placeholder_problems(rehearsal.command, template.placeholders(recipe)):
            yield Problem(("rehearsal", "command"), message)


@rule("rehearsal", "params")
def _rehearsal_param_problems(recipe: Recipe) -> Iterator[Problem]:
    for name in recipe.rehearsal.params if recipe.rehearsal else ():
        if name not in recipe.params:
            yield Problem(("rehearsal", "params", name), f"unknown parameter{suggestion(name, recipe.params)}")


@rule("metrics")
def _metric_problems(recipe: Recipe) -> Iterator[Problem]:
    for name, metric in recipe.metrics.items():
        path = ("metrics", name, "pattern")
        if len(metric.pattern) > _LONGEST_PATTERN:
            yield Problem(path, f"the pattern is longer than {_LONGEST_PATTERN} characters")
            continue
        try:
            groups = re.compile(metric.pattern).groupindex
        except (re.error, OverflowError) as err:
            yield Problem(path, f"not a regular expression: {err}")
            continue
        except RecursionError:
            yield Problem(path, "not a regular expression: its groups are nested too deeply")
            continue
        if metric.at_least is not None and metric.at_most is not None and metric.at_least > metric.at_most:
            message = f"no value is at least {metric.at_least:g} and at most {metric.at_most:g}"
            yield Problem(("metrics", name, "at_most"), message)
        if "value" not in groups:
            yield Problem(path, "expected a group named `value`, for example acc=(?P<value>[0-9.]+)")


@rule("resources")
def _prefer_spot_problems(recipe: Recipe) -> Iterator[Problem]:
    resources = recipe.resources
    if resources.prefer == "spot" and resources.market in ("reservation", "capacity-block"):
        message = (
            f"capacity with market: {resources.market} is already paid for; expected order, price, speed or region"
        )
        yield Problem(("resources", "prefer"), message)


@rule("work", "metrics")
def _work_problems(recipe: Recipe) -> Iterator[Problem]:
    if recipe.work is None:
        return
    metric = recipe.metrics.get(recipe.work.metric)
    if metric is None:
        hint = suggestion(recipe.work.metric, recipe.metrics)
        yield Problem(("work", "metric"), f"unknown metric {recipe.work.metric}{hint}")
    elif not metric.unit.endswith("/s"):
        unit = metric.unit or "no unit"
        yield Problem(("work", "metric"), f"{recipe.work.metric} is not a rate; expected a unit like img/s, got {unit}")
    elif metric.reference is None or metric.reference.value <= 0:
        message = f"the estimate needs a reference value above zero for {recipe.work.metric}"
        yield Problem(("work", "metric"), message)
    elif recipe.work.amount > Decimal(str(metric.reference.value)) * _LONGEST_WORK_S:
        message = f"at {metric.reference.value:g} {metric.unit} this takes more than 100 years; check the unit"
        yield Problem(("work", "amount"), message)


RULES: Final[tuple[RecipeRule, ...]] = tuple(
    value
    for names in (dict(globals()), vars(data_rules), vars(launch_rules))
    for value in names.values()
    if isinstance(value, RecipeRule)
)
"""Every rule, in the order in which problems on the same line are shown: that of the modules and their text."""
