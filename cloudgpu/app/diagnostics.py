"""`doctor`: check the prerequisites of a run without changing anything in the account."""

import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cloudgpu.aws.iam_grants import ROLE_GRANTS, ROLES_WITH_BOUNDARY, SPOT, ServiceRole
from cloudgpu.aws.session.credential_errors import EXPIRED_CODES
from cloudgpu.backends.base import AccountQueries
from cloudgpu.catalog.prices_and_quotas import Quota
from cloudgpu.catalog.unsupported import unsupported_partition
from cloudgpu.cloud import Grant, PermissionResult, QuotaLimit
from cloudgpu.errors import AuthError, CloudGpuError
from cloudgpu.paths import Home
from cloudgpu.plan.network_access import GATEWAYS, NO_REQUEST, NetworkRequest
from cloudgpu.plan.subnets import RegionNetwork, SubnetSeen, WayOut
from cloudgpu.rehearsal import client as rehearsal
from cloudgpu.settings import Settings
from cloudgpu.ssh.keys import read_public
from cloudgpu.targets import is_simulated
from cloudgpu.text import command, plural

State = Literal["ok", "warning", "failed", "unknown"]
_GIB = 1 << 30
_LOW_GIB = 2
_PROGRAM_S = 20
_SIMULATOR = ("moto", "asyncssh")
_STATES: Mapping[WayOut, State] = {"none": "warning", "unknown": "unknown"}
"""State of a subnet by its default route; `ok` for every other route."""
_SHOWN_ADDRESSES = 3
"""Maximum number of subnets listed on one line."""
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


@dataclass(frozen=True)
class Diagnosis:
    """The result of one `doctor` check.

    Attributes:
        name: Subject of the check, for example `SSH key`.
        state: Result. `warning`: only some commands are affected; `unknown`: the check could not be performed.
        fix: Command to run or setting to change; empty if nothing needs to be done.
    """

    name: str
    state: State
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class DiagnosticReport:
    """The results of all checks. `permissions` contains the `action`, `state` and `why` of each action."""

    target: str
    region: str
    checks: tuple[Diagnosis, ...]
    permissions: tuple[dict[str, str], ...] = field(default=())

    @property
    def failed(self) -> tuple[Diagnosis, ...]:
        """Failed checks."""
        return tuple(check for check in self.checks if check.state == "failed")

    def count(self, state: State) -> int:
        """Return the number of checks with this state."""
        return sum(check.state == state for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        return {
            "target": self.target,
            "simulated": is_simulated(self.target),
            "region": self.region,
            "failed": self.count("failed"),
            "unknown": self.count("unknown"),
            "checks": [vars(check) for check in self.checks],
            "permissions": list(self.permissions),
        }


def most_severe(states: Sequence[State]) -> State:
    """Return the most severe state: `failed`, then `unknown`, `warning` and `ok`."""
    order: tuple[State, ...] = ("failed", "unknown", "warning", "ok")
    return min(states, key=order.index, default="ok")


def machine_checks(settings: Settings, home: Home) -> tuple[Callable[[], Diagnosis], ...]:
    """Return the checks in the order in which they are reported."""
    return (
        lambda: state_home(home),
        lambda: ssh_key(settings.ssh_key, settings.key_name),
        lambda: pulumi_cli(needed=settings.engine == "pulumi", named=settings.pulumi_command),
        lambda: session_plugin(needed=settings.reach == "ssm", named=settings.session_manager_plugin),
        docker,
        lambda: rehearsal_cloud(home),
    )


def state_home(home: Home) -> Diagnosis:
    """Check that the state home is writable and has free space, creating the directory if it does not exist."""
    try:
        free_gib = shutil.disk_usage(home.ensure().root).free / _GIB
    except CloudGpuError as err:
        return Diagnosis("state home", "failed", err.message, err.hint)
    detail = f"{home.root}, {free_gib:.0f} GiB free"
    if free_gib < _LOW_GIB:
        return Diagnosis(
            "state home", "warning", detail, "free some space, or set CLOUDGPU_HOME to a directory on another disk"
        )
    return Diagnosis("state home", "ok", detail)


def ssh_key(path: Path, key_name: str) -> Diagnosis:
    """Check the SSH key for the nodes. The first `up` creates the key unless the settings name an EC2 key pair."""
    if not path.exists():
        if key_name:
            fix = f"set ssh_key to the private key of the EC2 key pair {key_name}"
            return Diagnosis("SSH key", "failed", f"{path} does not exist, and key_name is set", fix)
        return Diagnosis("SSH key", "ok", f"{path} will be created by the first `up`")
    try:
        return Diagnosis("SSH key", "ok", f"{path} {read_public(path).fingerprint}")
    except CloudGpuError as err:
        return Diagnosis("SSH key", "failed", err.message, err.hint)


def pulumi_cli(*, needed: bool, named: str = "") -> Diagnosis:
    """Check the Pulumi CLI, which only the pulumi engine needs. `named` is the path from the settings, or empty."""
    fix = "see https://www.pulumi.com/docs/install/; the direct engine does not need it"
    return _program("Pulumi CLI", (named or "pulumi", "version"), needed=needed, fix=fix)


def session_plugin(*, needed: bool, named: str = "") -> Diagnosis:
    """Check the Session Manager plugin, which is needed only with `reach = ssm`."""
    fix = "install the Session Manager plugin from AWS, 1.2.497 or newer; `reach = direct` does not need it"
    return _program("Session Manager plugin", (named or "session-manager-plugin", "--version"), needed=needed, fix=fix)


def docker() -> Diagnosis:
    """Check that Docker, which is needed only to build images, is running."""
    command = ("docker", "version", "--format", "{{.Server.Version}}")
    return _program(
        "Docker", command, needed=False, fix="install Docker if you build the images in images/ on this machine"
    )


def rehearsal_cloud(home: Home) -> Diagnosis:
    """Check that this state home's rehearsal cloud is running or can be started."""
    name = "rehearsal cloud"
    missing = [module for module in _SIMULATOR if importlib.util.find_spec(module) is None]
    if missing:
        return Diagnosis(name, "failed", f"{', '.join(missing)} cannot be imported", "reinstall cloudgpu")
    try:
        status = rehearsal.status(home)
    except CloudGpuError as err:
        return Diagnosis(name, "failed", err.message, err.hint)
    if status.cloud is not None:
        return Diagnosis(name, "ok", f"running at {status.cloud.url}, {plural(len(status.nodes), 'node')}")
    return _could_listen(name)


def _could_listen(name: str) -> Diagnosis:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            return Diagnosis(name, "ok", "not running; it is started when needed")
    except OSError as err:
        return Diagnosis(
            name, "failed", f"cannot listen on 127.0.0.1: {err.strerror}", "bring the loopback interface up"
        )


def _program(name: str, command: Sequence[str], *, needed: bool, fix: str) -> Diagnosis:
    """Check a program by running its version command. A broken or missing program is a failure only if needed."""
    absent = Diagnosis(name, "failed" if needed else "warning", f"{command[0]} is not on the PATH", fix)
    if shutil.which(command[0]) is None:
        return absent
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROGRAM_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        return Diagnosis(name, absent.state, f"cannot run {command[0]}: {err}", fix)
    output = (done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return Diagnosis(name, "ok", output) if done.returncode == 0 else Diagnosis(name, absent.state, output, fix)


def network_checks(account: AccountQueries, region: str, request: NetworkRequest) -> Iterator[Diagnosis]:
    """Yield the checks of the VPC and its subnets."""
    if request.create_vpc or request.public_address in GATEWAYS:
        yield Diagnosis("VPC", "ok", "each cluster gets a new VPC")
        return
    try:
        network, zones = account.network(request), account.zones()
    except CloudGpuError as err:
        yield Diagnosis("VPC", "unknown", err.message, err.hint)
        return
    if network.unknown:
        yield Diagnosis("VPC", "unknown", network.unknown)
    elif network.missing:
        create = command("aws", "ec2", "create-default-vpc", "--region", region)
        fix = f"set vpc_id, set create_vpc to true, or run `{create}`" if network.is_default else "correct the setting"
        yield Diagnosis("VPC", "failed", network.missing, fix)
    else:
        yield Diagnosis("VPC", "ok", network.name.removeprefix("the ") + f" in {region}")
        yield from _subnets(network, zones)


def _subnets(network: RegionNetwork, zones: Sequence[str]) -> Iterator[Diagnosis]:
    """Yield the subnets by the target of their default routes, and the zones without a subnet."""
    kind = "default subnet" if network.is_default else "subnet"
    subnets = [subnet for subnet in network.subnets if subnet.is_default or not network.is_default]
    by_route: dict[str, list[SubnetSeen]] = {}
    for subnet in subnets:
        by_route.setdefault(subnet.unusable or subnet.route, []).append(subnet)
    for route, members in by_route.items():
        names = [f"{subnet.id} in {subnet.zone}" for subnet in members]
        more = f" and {len(names) - _SHOWN_ADDRESSES} more" if len(names) > _SHOWN_ADDRESSES else ""
        state: State = "warning" if members[0].unusable else _STATES.get(members[0].way_out, "ok")
        yield Diagnosis(
            "subnets", state, f"{plural(len(members), kind)} with {route}: {', '.join(names[:_SHOWN_ADDRESSES])}{more}"
        )
    empty = [zone for zone in zones if zone not in {subnet.zone for subnet in network.subnets}]
    if empty:
        create = command("aws", "ec2", "create-default-subnet", "--availability-zone", empty[0])
        fix = f"`{create}`" if network.is_default else "create a subnet there, to use the zone"
        yield Diagnosis("subnets", "warning", f"no {kind} in {', '.join(empty)}", fix)


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
    checks.append(Diagnosis("credentials", "ok", f"account {identity.account}, {identity.arn} ({identity.login})"))
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
