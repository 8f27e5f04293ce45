"""`doctor`: is everything there that a run will need? Nothing is made, changed or ended anywhere."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from cloudgpu.app.diagnostics.check import Check, DiagnosticReport, State, worst
from cloudgpu.aws.iam.grants import Grant
from cloudgpu.aws.iam.permission_probe import Verdict
from cloudgpu.aws.pricing.quotas import Allowance
from cloudgpu.aws.session.credentials import EXPIRED
from cloudgpu.aws.session.session import Identity
from cloudgpu.errors import AuthError, CloudGpuError

_POLICY = "give this identity the policy that `cloudgpu doctor --policy` prints"
_SHOWN = 4
"""Actions named on one line; the JSON document has all of them."""
_UNASKED = ("NoCredentials", "Unreachable")
"""Codes after which nobody knows anything: having no account, or no network, is no fault of the set-up."""


class Account(Protocol):
    """What is asked of AWS."""

    def identity(self) -> Identity:
        """Who the credentials belong to."""

    def verdicts(self, identity: Identity, grants: Sequence[Grant]) -> Sequence[Verdict]:
        """One for every action of the grants."""

    def quotas(self) -> Sequence[Allowance]:
        """How many vCPUs may run."""


def examine(
    *,
    target: str,
    region: str,
    account: Callable[[], Account],
    grants: Sequence[Grant],
    machine: Sequence[Callable[[], Check]],
) -> DiagnosticReport:
    """Look at everything; what goes wrong while looking is a finding, never the end of it."""
    checks = [look() for look in machine]
    try:
        asked = account()
        identity = asked.identity()
    except CloudGpuError as err:
        return DiagnosticReport(target, region, (*checks, *_nobody(err)))
    checks.append(Check("credentials", "ok", f"account {identity.account}, {identity.arn} ({identity.login.label})"))
    verdicts = asked.verdicts(identity, grants)
    checks += [_permission(grant, verdicts) for grant in grants]
    checks += _quotas(asked, region)
    return DiagnosticReport(target, region, tuple(checks), tuple(vars(one) for one in verdicts))


def _nobody(err: CloudGpuError) -> Iterator[Check]:
    """Without an identity nothing else can be asked."""
    code = getattr(err, "code", "")
    failed = isinstance(err, AuthError) and code not in _UNASKED
    yield Check("credentials", "failed" if failed else "unknown", err.message, err.hint)
    why = "credentials expired" if code in EXPIRED else "not asked: it is not known who asks"
    yield Check("permissions", "unknown", why)
    yield Check("quotas", "unknown", why)


def _permission(grant: Grant, verdicts: Sequence[Verdict]) -> Check:
    about = [one for one in verdicts if one.action in grant.actions]
    state = worst([one.state for one in about])
    if state == "ok":
        return Check(
            grant.purpose, "ok", f"{_count(len(about))} allowed ({', '.join(sorted({one.why for one in about}))})"
        )
    concerned = [one for one in about if one.state == state]
    named = _named([one.action for one in concerned])
    if state == "failed":
        return Check(grant.purpose, "failed", f"denied: {named} ({concerned[0].why})", _POLICY)
    allowed = sum(one.state == "ok" for one in about)
    detail = f"{allowed} of {_count(len(about))} allowed, not known: {named} ({concerned[0].why})"
    return Check(grant.purpose, "unknown", detail)


def _named(actions: Sequence[str]) -> str:
    more = len(actions) - _SHOWN
    return ", ".join(actions[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _count(number: int) -> str:
    return f"{number} action{'' if number == 1 else 's'}"


def _quotas(asked: Account, region: str) -> list[Check]:
    try:
        found = asked.quotas()
    except CloudGpuError as err:
        return [Check("quotas", "unknown", err.message, err.hint)]
    none: State = "failed" if not any(one.vcpus for one in found if one.vcpus is not None) else "warning"
    return [_quota(one, region, none) for one in found]


def _quota(one: Allowance, region: str, none: State) -> Check:
    """One pool without a vCPU is a warning, since others may do; if none has any, nothing can be launched at all."""
    name = f"quota {one.quota.code}"
    if one.vcpus is None:
        return Check(name, "unknown", f"{one.quota.name}: AWS does not tell it for {region}")
    detail = f"{one.vcpus} vCPUs in {region}: {one.quota.name}"
    return (
        Check(name, "ok", detail)
        if one.vcpus
        else Check(name, none, detail, f"ask for more: {one.quota.console(region)}")
    )
