"""Run every check and rule on its passing and failing inputs and compare the exact findings."""

import importlib
import pkgutil

import pytest

from cloudgpu.plan import checks
from cloudgpu.plan.checks.check import Check
from cloudgpu.plan.exclusions import REGION_RULES, TYPE_RULES
from cloudgpu.plan.planner import CHECKS, SEVERITIES
from tests.unit.plan.checks.table import TABLE

RULES = (*TYPE_RULES, *REGION_RULES)
GRAVEST = {check.name: check.severity for check in CHECKS} | {rule.name: "error" for rule in RULES}
PASSING = [pytest.param(row.name, world, id=f"{row.name}-{n}") for row in TABLE for n, world in enumerate(row.passes)]
FAILING = [pytest.param(row.name, one, id=f"{row.name}-{n}") for row in TABLE for n, one in enumerate(row.fails)]


def test_every_check_and_rule_has_passing_and_failing_cases():
    named = {check.name for check in CHECKS} - {"left-out"} | {rule.name for rule in RULES}
    assert {row.name for row in TABLE if row.passes and row.fails} == named
    assert len(TABLE) == len({row.name for row in TABLE})
    assert all(one.said for row in TABLE for one in row.fails)


def test_planner_runs_the_checks_of_every_module():
    names = [found.name for found in pkgutil.iter_modules(checks.__path__, f"{checks.__name__}.")]
    modules = [importlib.import_module(name) for name in names]
    written = {value.name for module in modules for value in vars(module).values() if isinstance(value, Check)}
    assert written == {check.name for check in CHECKS}


def test_check_names_are_unique_and_descriptions_are_sentences():
    assert len(CHECKS) >= 30
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.about.endswith(".") for check in (*CHECKS, *RULES))


@pytest.mark.parametrize(("name", "world"), PASSING)
def test_check_reports_nothing_for_passing_inputs(name, world):
    assert world.found(name) == []


@pytest.mark.parametrize(("name", "failing"), FAILING)
def test_check_reports_expected_findings_for_failing_inputs(name, failing):
    assert [(one.severity, one.message, one.fix) for one in failing.world.found(name)] == list(failing.said)


@pytest.mark.parametrize(("name", "failing"), FAILING)
def test_findings_do_not_exceed_declared_severity_of_check(name, failing):
    for finding in failing.world.found(name):
        assert SEVERITIES.index(finding.severity) >= SEVERITIES.index(GRAVEST[name])
