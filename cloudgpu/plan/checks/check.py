"""Base types of checks. A check is a small pure function with a name, a maximum severity and a purpose."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloudgpu.plan.candidate_list import CandidateList
from cloudgpu.plan.plan import Finding, Plan, Severity
from cloudgpu.plan.planner_input import PlannerInput


@dataclass(frozen=True)
class CheckContext:
    """Input of a check: the planner's input, the candidates with the exclusions, and the plan."""

    inputs: PlannerInput
    candidate_list: CandidateList
    plan: Plan


@dataclass(frozen=True)
class Issue:
    """An issue that a check function found.

    Attributes:
        fix: Options or instructions that fix the problem.
        severity: Severity of this result; None for the check's severity.
        rule: Name of the rule under which to report an exclusion; empty to report it under the check's name.
    """

    message: str
    fix: str = ""
    severity: Severity | None = None
    rule: str = ""


Find = Callable[[CheckContext], Iterator[Issue]]


@dataclass(frozen=True)
class Check:
    """A named check: its maximum severity, purpose and function.

    Attributes:
        severity: Default severity of the findings, which no finding exceeds.
        about: Purpose of the check, in one sentence.
        on_hosts: Whether the check also applies to self-managed hosts.
    """

    name: str
    severity: Severity
    about: str
    find: Find
    on_hosts: bool = True

    def findings(self, context: CheckContext) -> Iterator[Finding]:
        """Run the check and yield its findings."""
        for issue in self.find(context):
            yield Finding(issue.rule or self.name, issue.severity or self.severity, issue.message, issue.fix)


def check(name: str, severity: Severity, about: str, *, on_hosts: bool = True) -> Callable[[Find], Check]:
    """Turn a function into a check. The planner runs the checks of the modules that it lists."""
    return lambda find: Check(name, severity, about, find, on_hosts)
