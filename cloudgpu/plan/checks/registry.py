"""Every check, in the order in which findings of one severity are shown."""

from typing import Final

from cloudgpu.plan.candidates import Field
from cloudgpu.plan.checks import data, environment, hardware, launch, market, money, network, promises, software
from cloudgpu.plan.checks.check import Case, Check
from cloudgpu.plan.plan import Finding, Plan, Severity
from cloudgpu.plan.question import Question

CHECKS: Final[tuple[Check, ...]] = (
    hardware.instance_types_known,
    hardware.gpus_known,
    hardware.regions_known,
    hardware.left_out,
    hardware.nothing_left,
    market.no_capacity_lately,
    network.reachable,
    market.reservation_told,
    money.within_budget,
    environment.container_runs,
    data.data_can_be_staged,
    launch.ranks_fit,
    software.torch_fits,
    market.spot_is_safe,
    money.prices_fresh,
    environment.secrets_asked,
    promises.checkpoint_copied,
    promises.idle_ended,
)

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "unknown", "note")
"""The gravest first. `unknown` is what could not be looked at: neither passed nor failed."""


def findings(question: Question, field: Field, plan: Plan) -> tuple[Finding, ...]:
    """What every check finds, errors first, each once."""
    case = Case(question, field, plan)
    found = dict.fromkeys(finding for check in CHECKS for finding in check.findings(case))
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))
