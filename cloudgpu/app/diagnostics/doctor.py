"""`doctor`: check the prerequisites of a run without changing anything."""

from collections.abc import Callable, Iterator, Sequence

from cloudgpu.app.diagnostics.check import Diagnosis, DiagnosticReport, State, most_severe
from cloudgpu.aws.iam.grants import Grant
from cloudgpu.aws.iam.permission_probe import PermissionResult
from cloudgpu.aws.pricing.quotas import QuotaLimit
from cloudgpu.aws.session.credentials import EXPIRED_CODES
from cloudgpu.backends.base import AccountQueries
from cloudgpu.errors import AuthError, CloudGpuError

_POLICY = "attach the policy from `cloudgpu doctor --policy` to this identity"
_SHOWN = 4
"""Number of actions listed on one line; the JSON document lists all of them."""
_UNASKED = ("NoCredentials", "Unreachable")
"""Error codes that make a check `unknown` rather than `failed`: no account or network is not a faulty setup."""


def run_checks(
    *,
    target: str,
    region: str,
    account: Callable[[], AccountQueries],
    grants: Sequence[Grant],
    machine: Sequence[Callable[[], Diagnosis]],
) -> DiagnosticReport:
    """Run all checks. An error during a check becomes the result of that check."""
    checks = [check() for check in machine]
    try:
        queries = account()
        identity = queries.identity()
    except CloudGpuError as err:
        return DiagnosticReport(target, region, (*checks, *_without_identity(err)))
    checks.append(
        Diagnosis("credentials", "ok", f"account {identity.account}, {identity.arn} ({identity.login.label})")
    )
    verdicts = queries.permission_results(identity, grants)
    checks += [_permission(grant, verdicts) for grant in grants]
    checks += _quotas(queries, region)
    return DiagnosticReport(target, region, tuple(checks), tuple(vars(verdict) for verdict in verdicts))


def _without_identity(err: CloudGpuError) -> Iterator[Diagnosis]:
    """Yield the checks that fail or stay unknown without an identity."""
    code = getattr(err, "code", "")
    failed = isinstance(err, AuthError) and code not in _UNASKED
    yield Diagnosis("credentials", "failed" if failed else "unknown", err.message, err.hint)
    why = "credentials expired" if code in EXPIRED_CODES else "not checked: the identity is unknown"
    yield Diagnosis("permissions", "unknown", why)
    yield Diagnosis("quotas", "unknown", why)


def _permission(grant: Grant, verdicts: Sequence[PermissionResult]) -> Diagnosis:
    relevant = [verdict for verdict in verdicts if verdict.action in grant.actions]
    state = most_severe([verdict.state for verdict in relevant])
    if state == "ok":
        return Diagnosis(
            grant.purpose,
            "ok",
            f"{_count(len(relevant))} allowed ({', '.join(sorted({verdict.why for verdict in relevant}))})",
        )
    decisive = [verdict for verdict in relevant if verdict.state == state]
    named = _named([verdict.action for verdict in decisive])
    if state == "failed":
        return Diagnosis(grant.purpose, "failed", f"denied: {named} ({decisive[0].why})", _POLICY)
    allowed = sum(verdict.state == "ok" for verdict in relevant)
    detail = f"{allowed} of {_count(len(relevant))} allowed, unknown: {named} ({decisive[0].why})"
    return Diagnosis(grant.purpose, "unknown", detail)


def _named(actions: Sequence[str]) -> str:
    more = len(actions) - _SHOWN
    return ", ".join(actions[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _count(number: int) -> str:
    return f"{number} action{'' if number == 1 else 's'}"


def _quotas(account: AccountQueries, region: str) -> list[Diagnosis]:
    try:
        quotas = account.quotas()
    except CloudGpuError as err:
        return [Diagnosis("quotas", "unknown", err.message, err.hint)]
    none: State = "failed" if not any(quota.vcpus for quota in quotas if quota.vcpus is not None) else "warning"
    return [_quota(quota, region, none) for quota in quotas]


def _quota(allowance: QuotaLimit, region: str, none: State) -> Diagnosis:
    """Check a quota. A quota of 0 vCPUs is a warning, or a failure if no quota allows any vCPUs."""
    name = f"quota {allowance.quota.code}"
    if allowance.vcpus is None:
        return Diagnosis(name, "unknown", f"{allowance.quota.name}: AWS does not report a value for {region}")
    detail = f"{allowance.vcpus} vCPUs in {region}: {allowance.quota.name}"
    return (
        Diagnosis(name, "ok", detail)
        if allowance.vcpus
        else Diagnosis(name, none, detail, f"request an increase: {allowance.quota.console(region)}")
    )
