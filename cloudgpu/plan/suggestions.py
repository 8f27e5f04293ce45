"""Find the smallest changes that make a rejected plan acceptable.

Every change is planned again, so that cloudgpu never suggests one that would be rejected. Single changes are tried
first, then two or three at once if one is not enough, because fixing one error can reveal another.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from typing import Final

from cloudgpu.plan.edits import Edit, edit, named_in, worth_trying
from cloudgpu.plan.plan import Finding, Plan
from cloudgpu.plan.planner_input import Question
from cloudgpu.plan.suggested_change import Remedy
from cloudgpu.recipe.units import DurationS

Planner = Callable[[Question], Plan]

SHOWN: Final = 3
"""Maximum number of suggestions."""
_SINGLES: Final = 40
_COMBINED: Final = 50
_EXTENDED: Final = 3
"""How many single changes are extended with a second one."""
_MAX_COMBINED: Final = 3
"""Maximum number of changes at once; with more it would be a different recipe."""
_SHORTEST_MIN: Final = 10
_NOT_PRICED: Final = Decimal("Infinity")


@dataclass(frozen=True)
class Trial:
    """A change, and the plan that results from it."""

    edit: Edit
    question: Question
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
    def remedy(self) -> Remedy:
        """The change as shown to the user."""
        return Remedy(self.edit.command, _hardware(self.plan), self.plan.worst_case_usd)


def with_remedies(plan: Plan, question: Question, planned: Planner) -> Plan:
    """Return the plan with remedies for each of its errors and for all of them together."""
    if not plan.errors:
        return plan
    start = Trial(Edit((), 0, ""), question, plan)
    levels = [list(_trials(start, planned, _SINGLES))]
    while len(levels) < _MAX_COMBINED and _may_combine(start, levels):
        levels.append(list(_combined_trials(start, levels[-1], planned)))

    def with_remedies_of(finding: Finding) -> Finding:
        if finding.severity != "error":
            return finding
        return replace(finding, remedies=_least(levels, lambda trial: _cures(trial, finding, start)))

    whole = _least(levels, lambda trial: not trial.refused)
    return replace(plan, findings=tuple(with_remedies_of(finding) for finding in plan.findings), remedies=whole)


def _may_combine(start: Trial, levels: Sequence[Sequence[Trial]]) -> bool:
    """Return True if combining more changes may fix an error that is still unresolved."""
    trials = [trial for level in levels for trial in level]
    open_still = {
        error.check for error in start.plan.errors if not any(_cures(trial, error, start) for trial in trials)
    }
    movable = {check for check in start.refused if any(check not in trial.refused for trial in trials)}
    whole = any(not trial.refused for trial in trials)
    return bool(open_still & movable) or (not whole and movable == start.refused)


def _least(levels: Sequence[Sequence[Trial]], helps: Callable[[Trial], bool]) -> tuple[Remedy, ...]:
    """Return the best trials among those with the fewest changes that help."""
    helpful = ([trial for trial in level if helps(trial)] for level in levels)
    return _best(next((trials for trials in helpful if trials), ()))


def _cures(trial: Trial, finding: Finding, start: Trial) -> bool:
    """Return True if the change fixes the error and introduces no new one."""
    return finding.check not in trial.refused and trial.refused < start.refused


def _best(trials: Iterable[Trial]) -> tuple[Remedy, ...]:
    """Return the best few remedies, at most one per kind of change."""
    best: dict[str, Remedy] = {}
    for trial in sorted(trials, key=lambda trial: trial.rank):
        best.setdefault(trial.edit.way, trial.remedy)
    return tuple(dict.fromkeys(best.values()))[:SHOWN]


def _combined_trials(start: Trial, trials: Sequence[Trial], planned: Planner) -> Iterator[Trial]:
    """Yield the most promising changes, each combined with one more."""
    left = _COMBINED
    # Extend only changes that fix at least one error, and only the best one of each kind.
    moved = [trial for trial in trials if trial.refused and start.refused - trial.refused]
    moved.sort(key=lambda trial: (len(trial.refused - start.refused), len(trial.refused), trial.rank))
    beginnings = {trial.edit.way: trial for trial in reversed(moved)}
    for first in [trial for trial in moved if beginnings[trial.edit.way] is trial][:_EXTENDED]:
        seconds = list(_trials(first, planned, left))
        left -= len(seconds)
        apart = [trial for trial in seconds if not dict(trial.edit.sets).keys() & dict(first.edit.sets).keys()]
        yield from (Trial(trial.edit.after(first.edit), trial.question, trial.plan) for trial in apart)
        if left <= 0 or any(not trial.refused for trial in apart):
            return


def _trials(start: Trial, planned: Planner, limit: int) -> Iterator[Trial]:
    """Yield trials: changes that the errors suggest, then ones from the catalog, then smaller requests."""
    edits: dict[tuple[tuple[str, str], ...], Edit] = {}
    own = named_in(finding.fix for finding in start.plan.errors)
    for candidate_edit in (*own, *worth_trying(start.question, start.refused), *_smaller_requests(start, planned)):
        known = edits.get(candidate_edit.sets, candidate_edit)
        edits[candidate_edit.sets] = candidate_edit if candidate_edit.weight < known.weight else known
    trials = (_try(start, candidate_edit, planned) for candidate_edit in edits.values())
    yield from islice((trial for trial in trials if trial is not None), limit)


def _try(start: Trial, change: Edit, planned: Planner) -> Trial | None:
    recipe = change.applied(start.question.recipe)
    if recipe is None:
        return None
    question = replace(start.question, recipe=recipe)
    return Trial(change, question, planned(question))


def _smaller_requests(trial: Trial, planned: Planner) -> Iterator[Edit]:
    """Yield the largest node count and the longest expiry that fix an error."""
    recipe = trial.question.recipe
    minutes = int(recipe.budget.expiry) // 60
    nodes = _most(trial, recipe.resources.nodes - 1, 1, lambda count: edit("resources.nodes", str(count)), planned)
    expiry = _most(
        trial, minutes - 1, _SHORTEST_MIN, lambda count: edit("budget.expiry", str(DurationS(count * 60))), planned
    )
    yield from (change for change in (nodes, expiry) if change is not None)


def _most(trial: Trial, most: int, least: int, made: Callable[[int], Edit], planned: Planner) -> Edit | None:
    """Return the change to the largest number that fixes an error; None if even the smallest does not."""

    def helps(count: int) -> bool:
        trial_of = _try(trial, made(count), planned)
        return trial_of is not None and trial_of.refused < trial.refused

    if most < least or not helps(least):
        return None
    low, high = least, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if helps(middle) else (low, middle - 1)
    return made(low)


def _hardware(plan: Plan) -> str:
    """Format the first candidate, `2 x g4dn.metal (8 x T4 16 GiB)`; empty without candidates."""
    if not plan.candidates:
        return ""
    first = plan.candidates[0]
    gpus = f"{first.gpus_per_node} x {first.gpu} {first.gpu_memory_gib.normalize():f} GiB"
    where = f" in {first.region}" if first.region else ""
    return f"{plan.nodes} x {first.instance_type} ({gpus}){where}"
