"""The nearest alternative: for a plan that is refused, the least change with which it is not. Found by trying. Pure.

Every change is planned through, so that nothing is offered which would be refused again; first single changes, then
two or three at once where one is not enough: what is cured first may uncover what could not be seen before.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from typing import Final

from cloudgpu.plan.edits import Edit, edit, named_in, worth_trying
from cloudgpu.plan.plan import Finding, Plan
from cloudgpu.plan.question import Question
from cloudgpu.plan.remedy import Remedy
from cloudgpu.recipe.units import DurationS

Planner = Callable[[Question], Plan]

SHOWN: Final = 3
"""More than this is no answer any more."""
_SINGLES: Final = 40
_MORE: Final = 50
_BEGINNINGS: Final = 3
"""How many changes are gone on with."""
_TOGETHER: Final = 3
"""More changes at once than this are another recipe."""
_SHORTEST_MIN: Final = 10
_NOT_PRICED: Final = Decimal("Infinity")


@dataclass(frozen=True)
class Trial:
    """A change, and the plan with it."""

    edit: Edit
    question: Question
    plan: Plan

    @property
    def refused(self) -> frozenset[str]:
        """The checks that still refuse it."""
        return frozenset(finding.check for finding in self.plan.errors)

    @property
    def rank(self) -> tuple[int, Decimal]:
        """The least change first, then the lowest price; of equals, what was tried first."""
        usd = self.plan.worst_case_usd
        return self.edit.weight, _NOT_PRICED if usd is None else usd

    @property
    def remedy(self) -> Remedy:
        """As people are told of it."""
        return Remedy(self.edit.command, _hardware(self.plan), self.plan.worst_case_usd)


def with_remedies(plan: Plan, question: Question, planned: Planner) -> Plan:
    """The plan, each of its errors with what would cure it, and with what would cure them all; as it is without any."""
    if not plan.errors:
        return plan
    start = Trial(Edit((), 0, ""), question, plan)
    levels = [list(_tried(start, planned, _SINGLES))]
    while len(levels) < _TOGETHER and _worth_going_on(start, levels):
        levels.append(list(_further(start, levels[-1], planned)))

    def told(finding: Finding) -> Finding:
        if finding.severity != "error":
            return finding
        return replace(finding, remedies=_least(levels, lambda trial: _cures(trial, finding, start)))

    whole = _least(levels, lambda trial: not trial.refused)
    return replace(plan, findings=tuple(told(finding) for finding in plan.findings), remedies=whole)


def _worth_going_on(start: Trial, levels: Sequence[Sequence[Trial]]) -> bool:
    """Whether something is still open that more changes at once may reach."""
    trials = [trial for level in levels for trial in level]
    open_still = {one.check for one in start.plan.errors if not any(_cures(trial, one, start) for trial in trials)}
    movable = {check for check in start.refused if any(check not in trial.refused for trial in trials)}
    whole = any(not trial.refused for trial in trials)
    return bool(open_still & movable) or (not whole and movable == start.refused)


def _least(levels: Sequence[Sequence[Trial]], helps: Callable[[Trial], bool]) -> tuple[Remedy, ...]:
    """Of the fewest changes that help at all, the best."""
    found = ([trial for trial in level if helps(trial)] for level in levels)
    return _best(next((trials for trials in found if trials), ()))


def _cures(trial: Trial, finding: Finding, start: Trial) -> bool:
    """Whether the error is gone, and none that was not there before has come."""
    return finding.check not in trial.refused and trial.refused < start.refused


def _best(trials: Iterable[Trial]) -> tuple[Remedy, ...]:
    """A few, each another way."""
    found: dict[str, Remedy] = {}
    for trial in sorted(trials, key=lambda one: one.rank):
        found.setdefault(trial.edit.way, trial.remedy)
    return tuple(dict.fromkeys(found.values()))[:SHOWN]


def _further(start: Trial, trials: Sequence[Trial], planned: Planner) -> Iterator[Trial]:
    """Those changes that come nearest, each with one more."""
    left = _MORE
    # One that cures nothing by itself is no beginning; of one kind of change, the best is enough here too.
    moved = [one for one in trials if one.refused and start.refused - one.refused]
    moved.sort(key=lambda one: (len(one.refused - start.refused), len(one.refused), one.rank))
    beginnings = {one.edit.way: one for one in reversed(moved)}
    for first in [one for one in moved if beginnings[one.edit.way] is one][:_BEGINNINGS]:
        seconds = list(_tried(first, planned, left))
        left -= len(seconds)
        apart = [one for one in seconds if not dict(one.edit.sets).keys() & dict(first.edit.sets).keys()]
        yield from (Trial(one.edit.after(first.edit), one.question, one.plan) for one in apart)
        if left <= 0 or any(not one.refused for one in apart):
            return


def _tried(start: Trial, planned: Planner, limit: int) -> Iterator[Trial]:
    """What the errors themselves name, then what the catalogue has, then less of what was asked for."""
    edits: dict[tuple[tuple[str, str], ...], Edit] = {}
    own = named_in(finding.fix for finding in start.plan.errors)
    for one in (*own, *worth_trying(start.question, start.refused), *_less(start, planned)):
        known = edits.get(one.sets, one)
        edits[one.sets] = one if one.weight < known.weight else known
    trials = (_try(start, one, planned) for one in edits.values())
    yield from islice((trial for trial in trials if trial is not None), limit)


def _try(start: Trial, one: Edit, planned: Planner) -> Trial | None:
    recipe = one.applied(start.question.recipe)
    if recipe is None:
        return None
    question = replace(start.question, recipe=recipe)
    return Trial(one, question, planned(question))


def _less(trial: Trial, planned: Planner) -> Iterator[Edit]:
    """As many nodes, or as long an expiry, as is not refused: where the least of it helps, the most that does."""
    recipe = trial.question.recipe
    minutes = int(recipe.budget.expiry) // 60
    nodes = _most(trial, recipe.resources.nodes - 1, 1, lambda count: edit("resources.nodes", str(count)), planned)
    expiry = _most(
        trial, minutes - 1, _SHORTEST_MIN, lambda count: edit("budget.expiry", str(DurationS(count * 60))), planned
    )
    yield from (one for one in (nodes, expiry) if one is not None)


def _most(trial: Trial, most: int, least: int, made: Callable[[int], Edit], planned: Planner) -> Edit | None:
    """The change to the largest number with which something is refused no more; None where the least does not help."""

    def helps(count: int) -> bool:
        found = _try(trial, made(count), planned)
        return found is not None and found.refused < trial.refused

    if most < least or not helps(least):
        return None
    low, high = least, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if helps(middle) else (low, middle - 1)
    return made(low)


def _hardware(plan: Plan) -> str:
    """`2 x g4dn.metal (8 x T4 16 GiB)`; empty without candidates."""
    if not plan.candidates:
        return ""
    first = plan.candidates[0]
    gpus = f"{first.gpus_per_node} x {first.gpu} {first.gpu_memory_gib.normalize():f} GiB"
    where = f" in {first.region}" if first.region else ""
    return f"{plan.nodes} x {first.instance_type} ({gpus}){where}"
