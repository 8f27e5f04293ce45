"""`doctor`: check the prerequisites of a run without changing anything in the account."""

from collections.abc import Callable, Iterator, Sequence

from cloudgpu.app.diagnostics.check import Diagnosis, DiagnosticReport, State, most_severe
from cloudgpu.app.diagnostics.network_checks import network_checks
from cloudgpu.aws.iam.grants import Grant
from cloudgpu.aws.iam.permission_probe import PermissionResult
from cloudgpu.aws.iam.role_permissions import ROLE_GRANTS, ROLES_WITH_BOUNDARY
from cloudgpu.aws.iam.service_roles import SPOT, ServiceRole
from cloudgpu.aws.pricing.quotas import QuotaLimit
from cloudgpu.aws.session.credential_errors import EXPIRED_CODES
from cloudgpu.backends.base import AccountQueries
from cloudgpu.catalog.partitions import unsupported_partition
from cloudgpu.catalog.quotas import Quota
from cloudgpu.errors import AuthError, CloudGpuError
from cloudgpu.plan.network_access import NO_REQUEST, NetworkRequest
from cloudgpu.text import command, plural

_POLICY = "attach the policy from `cloudgpu doctor --policy` to this identity"
_ROLE_POLICY = "attach the policy from `cloudgpu doctor --policy --part roles` to this identity"
_NODE_VCPUS = 96
"""vCPUs of one node with eight GPUs, such as p3dn.24xlarge, p4d.24xlarge and g4dn.metal."""
_OTHER_REGION = "set --region or the setting `region` to one of the partition aws, such as us-east-1"
_SHOWN = 4
"""Maximum number of actions listed on one line. The JSON document lists all actions."""
_UNASKED = ("NoCredentials", "Unreachable")
"""Error codes for which the credentials are `unknown` rather than `failed`.

Working without an AWS account or a network connection is not a configuration error.
"""


def run_checks(
    *,
    target: str,
    region: str,
    account: Callable[[], AccountQueries],
    grants: Sequence[Grant],
    machine: Sequence[Callable[[], Diagnosis]],
    service_roles: Sequence[ServiceRole] = (SPOT,),
    network: NetworkRequest = NO_REQUEST,
) -> DiagnosticReport:
    """Run all checks. An error during a check becomes the result of that check."""
    checks = [check() for check in machine]
    if unsupported := unsupported_partition(region):
        return DiagnosticReport(target, region, (*checks, *_with_unusable_region(unsupported, _OTHER_REGION)))
    try:
        queries = account()
    except CloudGpuError as err:
        return DiagnosticReport(target, region, (*checks, *_without_identity(err)))
    if queries.is_region_enabled() is False:
        return DiagnosticReport(target, region, (*checks, *_without_region(region)))
    try:
        identity = queries.identity()
    except CloudGpuError as err:
        return DiagnosticReport(target, region, (*checks, *_without_identity(err)))
    checks.append(
        Diagnosis("credentials", "ok", f"account {identity.account}, {identity.arn} ({identity.login.label})")
    )
    verdicts = queries.permission_results(identity, grants)
    checks += [_permission(grant, verdicts) for grant in grants]
    checks += _service_roles(queries, service_roles)
    checks += network_checks(queries, region, network)
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


def _without_region(region: str) -> Iterator[Diagnosis]:
    """Yield the checks for a region that the account has not enabled. AWS rejects the credentials in such a region."""
    enable = command("aws", "account", "enable-region", "--region-name", region)
    fix = f"`{enable}`, which takes minutes, or --region with an enabled one"
    yield from _with_unusable_region(f"{region} is not enabled for this account", fix)


def _with_unusable_region(why: str, fix: str) -> Iterator[Diagnosis]:
    yield Diagnosis("region", "failed", why, fix)
    for name in ("credentials", "permissions", "quotas"):
        yield Diagnosis(name, "unknown", "not checked: the region cannot be used")


def _service_roles(account: AccountQueries, roles: Sequence[ServiceRole]) -> list[Diagnosis]:
    """Check service-linked roles. AWS creates a missing one on first use, if the caller may create it."""
    try:
        present = set(account.service_roles())
    except CloudGpuError as err:
        return [Diagnosis("service-linked roles", "unknown", err.message, err.hint)]
    return [
        Diagnosis(f"role for {role.needed_for}", "ok", role.name)
        if role.name in present
        else Diagnosis(
            f"role for {role.needed_for}", "warning", f"no service-linked role {role.name}", role.create_command
        )
        for role in roles
    ]


def _permission(grant: Grant, verdicts: Sequence[PermissionResult]) -> Diagnosis:
    relevant = [verdict for verdict in verdicts if verdict.action in grant.actions]
    state = most_severe([verdict.state for verdict in relevant])
    if state == "ok":
        return Diagnosis(
            grant.purpose,
            "ok",
            f"{plural(len(relevant), 'action')} allowed ({', '.join(sorted({verdict.why for verdict in relevant}))})",
        )
    decisive = [verdict for verdict in relevant if verdict.state == state]
    named = _named([verdict.action for verdict in decisive])
    if state == "failed":
        return Diagnosis(grant.purpose, "failed", f"denied: {named} ({decisive[0].why})", _fix(grant))
    allowed = sum(verdict.state == "ok" for verdict in relevant)
    detail = f"{allowed} of {plural(len(relevant), 'action')} allowed, unknown: {named} ({decisive[0].why})"
    return Diagnosis(grant.purpose, "unknown", detail)


def _fix(grant: Grant) -> str:
    if grant.name == ROLES_WITH_BOUNDARY:
        return f"set permissions_boundary in the settings, and {_ROLE_POLICY}"
    return _ROLE_POLICY if any(grant.name == other.name for other in ROLE_GRANTS) else _POLICY


def _named(actions: Sequence[str]) -> str:
    more = len(actions) - _SHOWN
    return ", ".join(actions[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _quotas(account: AccountQueries, region: str) -> list[Diagnosis]:
    try:
        quotas = account.quotas()
    except CloudGpuError as err:
        return [Diagnosis("quotas", "unknown", err.message, err.hint)]
    none: State = "failed" if not any(quota.vcpus for quota in quotas if quota.vcpus is not None) else "warning"
    return [_quota(quota, region, none) for quota in quotas]


def _increase(quota: Quota, region: str) -> str:
    """Return the command that requests the vCPUs of one node, or the console page if the quota's code is unknown."""
    return quota.increase_command(region, _NODE_VCPUS) or quota.console(region)


def _quota(allowance: QuotaLimit, region: str, none: State) -> Diagnosis:
    """Check a quota. A quota of 0 vCPUs is a warning, or a failure if no quota allows any vCPUs."""
    name = f"quota {allowance.quota.code}"
    if allowance.vcpus is None:
        return Diagnosis(name, "unknown", f"{allowance.quota.name}: AWS does not report a value for {region}")
    detail = f"{allowance.vcpus} vCPUs in {region}: {allowance.quota.name}"
    return (
        Diagnosis(name, "ok", detail)
        if allowance.vcpus
        else Diagnosis(name, none, detail, f"request an increase: {_increase(allowance.quota, region)}")
    )
