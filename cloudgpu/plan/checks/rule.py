"""Types of the rules that exclude an instance type, a type in one region, or a zone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True)
class TypeRule:
    """A rule that excludes an instance type in every region."""

    name: str
    about: str
    """Purpose of the rule, in one sentence."""
    find: OfType


@dataclass(frozen=True)
class RegionRule:
    """A rule that excludes an instance type in one region."""

    name: str
    about: str
    find: OfRegion


@dataclass(frozen=True)
class ZoneRule:
    """A rule that excludes an instance type in one zone of a region."""

    name: str
    about: str
    find: OfZone


def type_rule(name: str, about: str) -> Callable[[OfType], TypeRule]:
    """Turn a function that checks a type into a rule."""
    return lambda find: TypeRule(name, about, find)


def region_rule(name: str, about: str) -> Callable[[OfRegion], RegionRule]:
    """Turn a function that checks a type in a region into a rule."""
    return lambda find: RegionRule(name, about, find)


def zone_rule(name: str, about: str) -> Callable[[OfZone], ZoneRule]:
    """Turn a function that checks a type in a zone into a rule."""
    return lambda find: ZoneRule(name, about, find)
