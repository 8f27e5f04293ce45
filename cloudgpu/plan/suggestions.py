"""Find the smallest changes that make a rejected plan acceptable.

Every changed recipe is planned again, so that cloudgpu never suggests a change that would be rejected. Single changes
are tried first, then combinations of two or three, because fixing one error can reveal another.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from typing import Final

from pydantic import ValidationError

from cloudgpu.catalog import Gpu
from cloudgpu.catalog.catalog import driver_for
from cloudgpu.errors import RecipeError
from cloudgpu.plan.checks.container_and_driver import container_choices
from cloudgpu.plan.checks.software_torch import backends_for, series_for
from cloudgpu.plan.plan import Finding, Plan, SuggestedChange
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.substitutes import Kinship, offered_elsewhere, substitutes
from cloudgpu.recipe import rules, text_rules
from cloudgpu.recipe.field_types import DurationS
from cloudgpu.recipe.schema import PythonEnvironment, Recipe, to_plain_values
from cloudgpu.recipe.set_option import assign
from cloudgpu.text import SHELL_WORD, command

_OPTION: Final = re.compile(rf"--set ({SHELL_WORD})")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_WEIGHTS: Final = {
    **{field: 1 for field in ("resources.zones", "resources.image", "resources.driver")},
    **{field: 1 for field in ("environment.container.image", "environment.python.torch_backend")},
    **{field: 2 for field in ("resources.regions", "resources.network", "budget.expiry")},
    "environment.python.requirements": 2,
    "resources.market": 3,
    "resources.nodes": 4,
    "budget.max_usd": 4,
}
"""Field -> how far a change of its value departs from the request, from 1 (minor) to 5 (major)."""
_TYPE_WEIGHTS: Final[dict[Kinship, int]] = {
    "same GPU": 2,
    "other number": 4,
    "same size": 3,
    "as much memory": 4,
    "most memory": 5,
}
_DEFAULT_WEIGHT: Final = 3
Planner = Callable[[PlannerInput], Plan]
MAX_REMEDIES: Final = 3
"""Maximum number of suggestions."""
_SINGLES: Final = 40
_COMBINED: Final = 50
_EXTENDED: Final = 3
"""Maximum number of trials to extend with one further change."""
_MAX_COMBINED: Final = 3
"""Maximum number of changes in a combination. More changes would make it a different recipe."""
_SHORTEST_MIN: Final = 10
_NOT_PRICED: Final = Decimal("Infinity")


@dataclass(frozen=True)
class Edit:
    """A change to a recipe.

    Attributes:
        sets: (field, text) pairs as typed after `--set`.
        weight: How far the change departs from the request; smaller is better.
        kind: Kind of change. Only the best of each kind is shown.
    """

    sets: tuple[tuple[str, str], ...]
    weight: int
    kind: str

    @property
    def command(self) -> str:
        """The change as `--set` options, quoted for the shell if necessary."""
        return " ".join(command("--set", f"{field}={text}") for field, text in self.sets)

    def after(self, other: "Edit") -> "Edit":
        """Return a change that applies `other` first, then this change."""
        return Edit((*other.sets, *self.sets), other.weight + self.weight, f"{other.kind}, {self.kind}")

    def applied(self, recipe: Recipe) -> Recipe | None:
        """Return the changed recipe; None if it is invalid or unchanged."""
        values = to_plain_values(recipe)
        try:
            for field, text in self.sets:
                assign(values, field, text)
            if any(text_rules.text_problems(values)):
                return None
            changed = Recipe.model_validate(values, by_alias=True, by_name=False)
        except (RecipeError, ValidationError):
            return None
        return None if changed == recipe or any(rules.rule_problems(changed)) else changed


def edit(field: str, text: str, *more: tuple[str, str], weight: int | None = None, kind: str = "") -> Edit:
    """Return a change that sets one field and the fields in `more`."""
    return Edit(((field, text), *more), weight or _WEIGHTS.get(field, _DEFAULT_WEIGHT), kind or field)


def edits_in_fixes(fixes: Iterable[str]) -> Iterator[Edit]:
    """Yield one change for each `--set` option in the fixes that checks suggest."""
    for fix in fixes:
        for word in _OPTION.findall(fix):
            plain_word = shlex.split(word)[0] if word.startswith("'") else word.rstrip(",;)")
            if match := _ASSIGNMENT.fullmatch(plain_word):
                yield edit(match[1], match[2])


def candidate_edits(inputs: PlannerInput, refused: Set[str]) -> Iterator[Edit]:
    """Yield the single changes that may resolve the errors of the checks in `refused`."""
    yield from _drivers(inputs, refused)
    yield from _containers(inputs, refused)
    yield from _wheels(inputs, refused)
    yield from _locations_markets_networks(inputs)
    yield from _hardware_edits(inputs)


def _drivers(inputs: PlannerInput, refused: Set[str]) -> Iterator[Edit]:
    if not refused & {"machine-image", "driver", "driver-given", "cuda"}:
        return
    resources = inputs.recipe.resources
    if resources.image is not None:
        yield edit("resources.image", "")
    for gpu in _gpus(inputs):
        yield edit("resources.driver", str(driver_for(gpu.architecture).branch))
    if resources.driver is not None:
        yield edit("resources.driver", "")


def _containers(inputs: PlannerInput, refused: Set[str]) -> Iterator[Edit]:
    container = inputs.recipe.environment.container
    if container is not None and refused & {"image", "cuda"}:
        for gpu in _gpus(inputs):
            for image in container_choices(container.image, gpu, inputs):
                yield edit("environment.container.image", image)


def _wheels(inputs: PlannerInput, refused: Set[str]) -> Iterator[Edit]:
    python, known = inputs.recipe.environment.python, inputs.software.torch
    if python is not None and refused & {"torch", "cuda"}:
        for gpu in _gpus(inputs):
            for build in backends_for(python, gpu, known):
                yield edit("environment.python.torch_backend", build)
            yield from _older_torch(python, series_for(python, gpu, known))


def _gpus(inputs: PlannerInput) -> Iterator[Gpu]:
    """Yield each requested GPU once."""
    yield from (
        inputs.catalog.gpus[name] for name in dict.fromkeys(instance_type.gpu for instance_type in inputs.types)
    )


def _older_torch(python: PythonEnvironment, series: str) -> Iterator[Edit]:
    """Yield a change that pins PyTorch to a series, unless a requirement has a comma, which `--set` cannot express."""
    others = [
        requirement
        for requirement in python.requirements
        if not re.match(r"\s*torch\s*([\[=~<>!;]|$)", requirement, re.IGNORECASE)
    ]
    if series and not any("," in requirement for requirement in others):
        yield edit("environment.python.requirements", ",".join([f"torch~={series}.0", *others]))


def _locations_markets_networks(inputs: PlannerInput) -> Iterator[Edit]:
    resources = inputs.recipe.resources
    if resources.zones:
        yield edit("resources.zones", "")
    anywhere = (("resources.zones", ""),) if resources.zones else ()
    for region in offered_elsewhere(inputs):
        yield edit("resources.regions", region, *anywhere)
    no_reservation = (("resources.reservation", ""),) if resources.reservation else ()
    for market in ("on-demand", "spot"):
        if market != resources.market:
            yield edit("resources.market", market, *no_reservation)
    for network in ("auto", "tcp"):
        if network != resources.network:
            yield edit("resources.network", network)


def _hardware_edits(inputs: PlannerInput) -> Iterator[Edit]:
    for kinship, instance_type in substitutes(inputs):
        yield edit("resources.instance_type", instance_type.name, weight=_TYPE_WEIGHTS[kinship], kind=kinship)


@dataclass(frozen=True)
class Trial:
    """A change and the plan that results from it."""

    edit: Edit
    inputs: PlannerInput
    plan: Plan

    @property
    def refused(self) -> frozenset[str]:
        """Names of the checks that still reject the plan."""
        return frozenset(finding.check for finding in self.plan.errors)

    @property
    def rank(self) -> tuple[int, Decimal]:
        """Sort key: smallest change first, then lowest price."""
        usd = self.plan.worst_case_usd
        return self.edit.weight, _NOT_PRICED if usd is None else usd

    @property
    def remedy(self) -> SuggestedChange:
        """The change as a suggestion for the user."""
        return SuggestedChange(self.edit.command, _hardware(self.plan), self.plan.worst_case_usd)


def with_remedies(plan: Plan, inputs: PlannerInput, planned: Planner) -> Plan:
    """Return the plan with remedies for each error, and with remedies that fix all errors."""
    if not plan.errors:
        return plan
    start = Trial(Edit((), 0, ""), inputs, plan)
    levels = [list(_trials(start, planned, _SINGLES))]
    while len(levels) < _MAX_COMBINED and _may_combine(start, levels):
        levels.append(list(_combined_trials(start, levels[-1], planned)))

    def with_remedies_of(finding: Finding) -> Finding:
        if finding.severity != "error":
            return finding
        return replace(finding, remedies=_smallest(levels, lambda trial: _cures(trial, finding, start)))

    whole = _smallest(levels, lambda trial: not trial.refused)
    return replace(plan, findings=tuple(with_remedies_of(finding) for finding in plan.findings), remedies=whole)


def _may_combine(start: Trial, levels: Sequence[Sequence[Trial]]) -> bool:
    """Return True if combining more changes may fix an error that no trial has fixed so far."""
    trials = [trial for level in levels for trial in level]
    unresolved = {
        error.check for error in start.plan.errors if not any(_cures(trial, error, start) for trial in trials)
    }
    fixable = {check for check in start.refused if any(check not in trial.refused for trial in trials)}
    all_fixed = any(not trial.refused for trial in trials)
    return bool(unresolved & fixable) or (not all_fixed and fixable == start.refused)


def _smallest(levels: Sequence[Sequence[Trial]], helps: Callable[[Trial], bool]) -> tuple[SuggestedChange, ...]:
    """Return the best remedies from the first level with a helpful trial. Each level combines one more change."""
    helpful = ([trial for trial in level if helps(trial)] for level in levels)
    return _best(next((trials for trials in helpful if trials), ()))


def _cures(trial: Trial, finding: Finding, start: Trial) -> bool:
    """Return True if the change fixes the error and introduces no new errors."""
    return finding.check not in trial.refused and trial.refused < start.refused


def _best(trials: Iterable[Trial]) -> tuple[SuggestedChange, ...]:
    """Return the best remedies: at most `MAX_REMEDIES` in total and one per kind of change."""
    best: dict[str, SuggestedChange] = {}
    for trial in sorted(trials, key=lambda trial: trial.rank):
        best.setdefault(trial.edit.kind, trial.remedy)
    return tuple(dict.fromkeys(best.values()))[:MAX_REMEDIES]


def _combined_trials(start: Trial, trials: Sequence[Trial], planned: Planner) -> Iterator[Trial]:
    """Combine each of the most promising trials with one further change, and yield the resulting trials."""
    left = _COMBINED
    # Extend only trials that fix at least one error, and only the best trial of each kind of change.
    moved = [trial for trial in trials if trial.refused and start.refused - trial.refused]
    moved.sort(key=lambda trial: (len(trial.refused - start.refused), len(trial.refused), trial.rank))
    best = {trial.edit.kind: trial for trial in reversed(moved)}
    for first in [trial for trial in moved if best[trial.edit.kind] is trial][:_EXTENDED]:
        seconds = list(_trials(first, planned, left))
        left -= len(seconds)
        apart = [trial for trial in seconds if not dict(trial.edit.sets).keys() & dict(first.edit.sets).keys()]
        yield from (Trial(trial.edit.after(first.edit), trial.inputs, trial.plan) for trial in apart)
        if left <= 0 or any(not trial.refused for trial in apart):
            return


def _trials(start: Trial, planned: Planner, limit: int) -> Iterator[Trial]:
    """Yield trials of the changes that the errors suggest, then of similar hardware, then of smaller requests."""
    edits: dict[tuple[tuple[str, str], ...], Edit] = {}
    suggested = edits_in_fixes(finding.fix for finding in start.plan.errors)
    for candidate_edit in (
        *suggested,
        *candidate_edits(start.inputs, start.refused),
        *_smaller_requests(start, planned),
    ):
        known = edits.get(candidate_edit.sets, candidate_edit)
        edits[candidate_edit.sets] = candidate_edit if candidate_edit.weight < known.weight else known
    trials = (_try(start, candidate_edit, planned) for candidate_edit in edits.values())
    yield from islice((trial for trial in trials if trial is not None), limit)


def _try(start: Trial, change: Edit, planned: Planner) -> Trial | None:
    recipe = change.applied(start.inputs.recipe)
    if recipe is None:
        return None
    inputs = replace(start.inputs, recipe=recipe)
    return Trial(change, inputs, planned(inputs))


def _smaller_requests(trial: Trial, planned: Planner) -> Iterator[Edit]:
    """Yield the smallest reductions in the node count and the expiry that would fix an error."""
    recipe = trial.inputs.recipe
    minutes = int(recipe.budget.expiry) // 60
    nodes = _largest_that_helps(
        trial, recipe.resources.nodes - 1, 1, lambda count: edit("resources.nodes", str(count)), planned
    )
    expiry = _largest_that_helps(
        trial, minutes - 1, _SHORTEST_MIN, lambda count: edit("budget.expiry", str(DurationS(count * 60))), planned
    )
    yield from (change for change in (nodes, expiry) if change is not None)


def _largest_that_helps(
    trial: Trial, most: int, least: int, made: Callable[[int], Edit], planned: Planner
) -> Edit | None:
    """Return the change with the largest number that fixes an error; None if even the smallest number does not."""

    def helps(count: int) -> bool:
        changed = _try(trial, made(count), planned)
        return changed is not None and changed.refused < trial.refused

    if most < least or not helps(least):
        return None
    low, high = least, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if helps(middle) else (low, middle - 1)
    return made(low)


def _hardware(plan: Plan) -> str:
    """Format the first candidate, such as `2 x g4dn.metal (8 x T4 16 GiB)`; empty if there are no candidates.

    The account's quotas were read only in the regions of the recipe, so a change to another region says so.
    """
    if not plan.candidates:
        return ""
    first = plan.candidates[0]
    gpus = f"{first.gpus_per_node} x {first.gpu} {first.gpu_memory_gib.normalize():f} GiB"
    where = f" in {first.region}" if first.region else ""
    unread = any(finding.check == "quota" and finding.severity == "unknown" for finding in plan.findings)
    return f"{plan.nodes} x {first.instance_type} ({gpus}){where}{', quota unknown' if unread else ''}"
