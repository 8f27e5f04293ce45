"""Base types of checks: a small pure function with a name, a maximum severity and a purpose."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloudgpu.plan.candidates import Field
from cloudgpu.plan.plan import Finding, Plan, Severity
from cloudgpu.plan.planner_input import Question


@dataclass(frozen=True)
class Case:
    """Input of a check: the question, the remaining candidates, and the plan."""

    question: Question
    field: Field
    plan: Plan


@dataclass(frozen=True)
class Issue:
    """One result of a check function.

    Attributes:
        fix: Options or a sentence that would fix it.
        severity: None means the check's severity.
        rule: The rule that excluded a candidate, if it reports instead of the check.
    """

    message: str
    fix: str = ""
    severity: Severity | None = None
    rule: str = ""


Find = Callable[[Case], Iterator[Issue]]


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        severity: The highest severity of its findings.
        about: What the check protects from, in one sentence.
    """

    name: str
    severity: Severity
    about: str
    find: Find

    def findings(self, case: Case) -> Iterator[Finding]:
        """Yield the findings for a case."""
        for issue in self.find(case):
            yield Finding(issue.rule or self.name, issue.severity or self.severity, issue.message, issue.fix)


def check(name: str, severity: Severity, about: str) -> Callable[[Find], Check]:
    """Turn a function into a check. It takes effect once it is listed in `registry.CHECKS`."""
    return lambda find: Check(name, severity, about, find)
