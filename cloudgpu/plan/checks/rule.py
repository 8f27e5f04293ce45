"""Rules that throw single candidates out: a type everywhere, a type in one region, or a zone. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloudgpu.catalog import InstanceType
from cloudgpu.plan.question import Question


@dataclass(frozen=True)
class Reason:
    """Why something was thrown out. `fix` is what would let it, or something near it, in."""

    message: str
    fix: str = ""


OfType = Callable[[Question, InstanceType], Iterator[Reason]]
OfRegion = Callable[[Question, InstanceType, str], Iterator[Reason]]
OfZone = Callable[[Question, str, str], Iterator[Reason]]


@dataclass(frozen=True)
class TypeRule:
    """Throws a type out everywhere."""

    name: str
    about: str
    """What it protects from, in one sentence."""
    find: OfType


@dataclass(frozen=True)
class RegionRule:
    """Throws a type out in one region."""

    name: str
    about: str
    find: OfRegion


@dataclass(frozen=True)
class ZoneRule:
    """Throws one zone of a region out, whatever the type."""

    name: str
    about: str
    find: OfZone


def type_rule(name: str, about: str) -> Callable[[OfType], TypeRule]:
    """Make a rule of a function that looks at a type."""
    return lambda find: TypeRule(name, about, find)


def region_rule(name: str, about: str) -> Callable[[OfRegion], RegionRule]:
    """Make a rule of a function that looks at a type in a region."""
    return lambda find: RegionRule(name, about, find)


def zone_rule(name: str, about: str) -> Callable[[OfZone], ZoneRule]:
    """Make a rule of a function that looks at a zone of a region."""
    return lambda find: ZoneRule(name, about, find)
