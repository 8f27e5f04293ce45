"""Rules between fields, which the schema alone cannot say. Each rule is a small pure function.

A rule names the sections that it reads, so that it is left out while one of those is itself wrong.
"""

import re
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Final

from cloudgpu.recipe import template
from cloudgpu.recipe.argument_rules import arguments_small_enough
from cloudgpu.recipe.batch import batch_of
from cloudgpu.recipe.data_rules import checkpoint_in_s3, data_brought_well, datasets_apart, outputs_in_s3
from cloudgpu.recipe.launch_rules import (
    kvstore_of_a_kind,
    ranks_where_they_are_counted,
    servers_where_there_are_any,
)
from cloudgpu.recipe.nearest import suggestion
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.schema import Environment, Recipe
from cloudgpu.recipe.service_rules import service_where_one_is_started, services_apart, services_reachable
from cloudgpu.recipe.storage_rules import storage_made_well, storage_mountable

_LONGEST_WORK_S: Final = 100 * 366 * 86400


@dataclass(frozen=True)
class Rule:
    """What it reads, and how it looks for problems."""

    sections: frozenset[str]
    find: Callable[[Recipe], Iterator[Problem]]


def broken(recipe: Recipe, *, without: Set[str] = frozenset()) -> Iterator[Problem]:
    """Every problem of every rule that reads none of the sections in `without`."""
    for rule in RULES:
        if not rule.sections & without:
            yield from rule.find(recipe)


def _hardware_named_once(recipe: Recipe) -> Iterator[Problem]:
    given = [name for name in ("gpu", "any_of", "instance_type") if getattr(recipe.resources, name)]
    if not given:
        yield Problem(("resources",), "expected one of gpu, any_of or instance_type, for instance gpu: V100:8")
    for name in given[1:]:
        yield Problem(("resources", name), f"{given[0]} is given already; name the hardware once")


def _reservation_named(recipe: Recipe) -> Iterator[Problem]:
    market, reservation = recipe.resources.market, recipe.resources.reservation
    if market in ("reservation", "capacity-block") and reservation is None:
        yield Problem(
            ("resources", "reservation"), f"market is {market}: expected its id, for instance cr-0a1b2c3d4e5f60718"
        )
    if reservation is not None and market in ("on-demand", "spot"):
        yield Problem(("resources", "reservation"), f"market is {market}; expected reservation or capacity-block")


def _gpu_written_as_model_and_count(recipe: Recipe) -> Iterator[Problem]:
    wanted: list[tuple[FieldPath, str]] = []
    if recipe.resources.gpu:
        wanted.append((("resources", "gpu"), recipe.resources.gpu))
    for index, name in enumerate(recipe.resources.any_of):
        if "." not in name:
            wanted.append((("resources", "any_of", index), name))
    for path, name in wanted:
        if not re.fullmatch(r"[A-Za-z0-9-]+:[1-9][0-9]?", name):
            yield Problem(path, f"expected a GPU and how many a node, for instance V100:8, got {name}")


def _zones_in_regions(recipe: Recipe) -> Iterator[Problem]:
    for index, zone in enumerate(recipe.resources.zones):
        if recipe.resources.regions and zone[:-1] not in recipe.resources.regions:
            listed = ", ".join(recipe.resources.regions)
            yield Problem(("resources", "zones", index), f"{zone} is in none of the regions given ({listed})")


def _one_environment(recipe: Recipe) -> Iterator[Problem]:
    yield from _one_of_two(recipe.environment, ("environment",))
    if recipe.rehearsal and recipe.rehearsal.environment:
        yield from _one_of_two(recipe.rehearsal.environment, ("rehearsal", "environment"))


def _one_of_two(environment: Environment, path: FieldPath) -> Iterator[Problem]:
    if environment.container and environment.python:
        yield Problem((*path, "python"), "container is given already; expected a container or a Python, not both")
    for index, name in enumerate(environment.secrets):
        if name in environment.env:
            message = f"{name} stands in env too; a secret's value must never be written in a recipe"
            yield Problem((*path, "secrets", index), message)


def _below_workdir(recipe: Recipe) -> Iterator[Problem]:
    inside: list[tuple[FieldPath, PurePosixPath]] = [
        (("outputs", index), PurePosixPath(name)) for index, name in enumerate(recipe.outputs)
    ]
    if recipe.checkpoint:
        inside.append((("checkpoint", "path"), recipe.checkpoint.path))
    for path, place in inside:
        if place.is_absolute() or ".." in place.parts or not place.parts:
            yield Problem(path, f"expected a path below the work directory, got {place}")


def _params_named_well(recipe: Recipe) -> Iterator[Problem]:
    for name in recipe.params:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
            yield Problem(("params", name), "expected a name of letters, digits and underscores")
        if name in (*template.RUN_NAMES, "checkpoint", "hostfile"):
            yield Problem(("params", name), f"{{{name}}} already means something else; choose another name")


def _command_fillable(recipe: Recipe) -> Iterator[Problem]:
    for message in template.problems(recipe.launch.command, template.placeholders(recipe)):
        yield Problem(("launch", "command"), message)


def _batch_a_number(recipe: Recipe) -> Iterator[Problem]:
    batch = recipe.launch.global_batch
    if not isinstance(batch, str):
        return
    known = template.problems(batch, tuple(recipe.params))
    wrong = list(known) or ([] if batch_of(recipe) else [f"expected a whole number, got {batch}"])
    for message in wrong:
        yield Problem(("launch", "global_batch"), message)


def _rehearsal_command_fillable(recipe: Recipe) -> Iterator[Problem]:
    if recipe.rehearsal and recipe.rehearsal.command is not None:
        for message in template.problems(recipe.rehearsal.command, template.placeholders(recipe)):
            yield Problem(("rehearsal", "command"), message)


def _rehearsal_params_known(recipe: Recipe) -> Iterator[Problem]:
    for name in recipe.rehearsal.params if recipe.rehearsal else ():
        if name not in recipe.params:
            yield Problem(("rehearsal", "params", name), f"unknown parameter{suggestion(name, recipe.params)}")


def _metrics_readable(recipe: Recipe) -> Iterator[Problem]:
    for name, metric in recipe.metrics.items():
        path = ("metrics", name, "pattern")
        try:
            groups = re.compile(metric.pattern).groupindex
        except re.error as err:
            yield Problem(path, f"not a regular expression: {err}")
            continue
        if "value" not in groups:
            yield Problem(path, "expected a group named value, for instance acc=(?P<value>[0-9.]+)")


def _spot_preferred_to_on_demand(recipe: Recipe) -> Iterator[Problem]:
    resources = recipe.resources
    if resources.prefer == "spot" and resources.market in ("reservation", "capacity-block"):
        message = f"market is {resources.market}, which is bought already; expected order, price, speed or region"
        yield Problem(("resources", "prefer"), message)


def _work_at_a_known_rate(recipe: Recipe) -> Iterator[Problem]:
    if recipe.work is None:
        return
    metric = recipe.metrics.get(recipe.work.metric)
    if metric is None:
        near = suggestion(recipe.work.metric, recipe.metrics)
        yield Problem(("work", "metric"), f"unknown metric {recipe.work.metric}{near}")
    elif not metric.unit.endswith("/s"):
        unit = metric.unit or "no unit"
        yield Problem(("work", "metric"), f"{recipe.work.metric} is no rate: expected a unit like img/s, got {unit}")
    elif metric.reference is None or metric.reference.value <= 0:
        yield Problem(("work", "metric"), f"{recipe.work.metric} has no reference above zero to reckon with")
    elif recipe.work.amount > Decimal(str(metric.reference.value)) * _LONGEST_WORK_S:
        message = f"at {metric.reference.value:g} {metric.unit} this takes more than 100 years; is it the right unit?"
        yield Problem(("work", "amount"), message)


def _rule(find: Callable[[Recipe], Iterator[Problem]], *sections: str) -> Rule:
    return Rule(frozenset(sections), find)


RULES = (
    _rule(_hardware_named_once, "resources"),
    _rule(_reservation_named, "resources"),
    _rule(_gpu_written_as_model_and_count, "resources"),
    _rule(_zones_in_regions, "resources"),
    _rule(_one_environment, "environment", "rehearsal"),
    _rule(datasets_apart, "data"),
    _rule(data_brought_well, "data"),
    _rule(checkpoint_in_s3, "checkpoint"),
    _rule(outputs_in_s3, "outputs_to", "outputs"),
    _rule(storage_mountable, "storage", "data"),
    _rule(storage_made_well, "storage", "resources"),
    _rule(_below_workdir, "outputs", "checkpoint"),
    _rule(_params_named_well, "params"),
    _rule(_command_fillable, "launch", "params", "data", "storage", "checkpoint"),
    _rule(
        arguments_small_enough,
        "launch",
        "params",
        "data",
        "storage",
        "checkpoint",
        "environment",
        "rehearsal",
        "resources",
    ),
    _rule(_batch_a_number, "launch", "params"),
    _rule(ranks_where_they_are_counted, "launch"),
    _rule(kvstore_of_a_kind, "launch", "params"),
    _rule(servers_where_there_are_any, "launch"),
    _rule(_rehearsal_command_fillable, "rehearsal", "params", "data", "storage", "checkpoint"),
    _rule(_rehearsal_params_known, "rehearsal", "params"),
    _rule(_metrics_readable, "metrics"),
    _rule(_spot_preferred_to_on_demand, "resources"),
    _rule(_work_at_a_known_rate, "work", "metrics"),
    _rule(service_where_one_is_started, "launch"),
    _rule(services_apart, "launch"),
    _rule(services_reachable, "launch", "environment", "params", "data", "storage", "checkpoint"),
)
