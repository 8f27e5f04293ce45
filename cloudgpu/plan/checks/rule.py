"""Rules that exclude an instance type, a type in one region, or a type in one zone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from cloudgpu.catalog import InstanceType
from cloudgpu.plan.planner_input import PlannerInput


@dataclass(frozen=True)
class Reason:
    """The reason for an exclusion. `fix` is a change that would allow the excluded item or a similar one."""

    message: str
    fix: str = ""


OfType = Callable[[PlannerInput, InstanceType], Iterator[Reason]]
OfRegion = Callable[[PlannerInput, InstanceType, str], Iterator[Reason]]
OfZone = Callable[[PlannerInput, InstanceType, str, str], Iterator[Reason]]
F = TypeVar("F")
F_co = TypeVar("F_co", covariant=True)


@dataclass(frozen=True)
class Rule(Generic[F_co]):
    """A named rule, whose function yields the reasons to exclude what it is called with.

    Attributes:
        about: Purpose of the rule, in one sentence.
    """

    name: str
    about: str
    find: F_co


def rule(name: str, about: str) -> Callable[[F], Rule[F]]:
    """Turn a function that checks a type, a type in a region or a type in a zone into a rule."""
    return lambda find: Rule(name, about, find)
