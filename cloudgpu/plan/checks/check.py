"""What a check is: a small pure function with a name, the gravest severity it may speak with, and what it is for."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloudgpu.plan.candidates import Field
from cloudgpu.plan.plan import Finding, Plan, Severity
from cloudgpu.plan.question import Question


@dataclass(frozen=True)
class Case:
    """What a check looks at: what was asked, which candidates are left, and the plan that came of it."""

    question: Question
    field: Field
    plan: Plan


@dataclass(frozen=True)
class Found:
    """One thing that a check saw.

    Attributes:
        fix: A command line fragment or sentence that would cure it.
        severity: None means the check's own.
        rule: The rule that threw a candidate out, where it speaks and not the check.
    """

    message: str
    fix: str = ""
    severity: Severity | None = None
    rule: str = ""


Find = Callable[[Case], Iterator[Found]]


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        severity: The gravest that it may speak with.
        about: What it protects from, in one sentence.
    """

    name: str
    severity: Severity
    about: str
    find: Find

    def findings(self, case: Case) -> Iterator[Finding]:
        """What it has to say of a case."""
        for found in self.find(case):
            yield Finding(found.rule or self.name, found.severity or self.severity, found.message, found.fix)


def check(name: str, severity: Severity, about: str) -> Callable[[Find], Check]:
    """Make a check of a function; it does not count before it stands in `registry.CHECKS`."""
    return lambda find: Check(name, severity, about, find)
