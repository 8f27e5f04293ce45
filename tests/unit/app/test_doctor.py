"""Check results of `doctor` for scripted account responses, and its complete text output."""

import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cloudgpu.app import diagnostics
from cloudgpu.app.diagnostics import Diagnosis, run_checks
from cloudgpu.aws.iam_grants import SPOT, STORAGE_ROLES
from cloudgpu.aws.session.credential_errors import CredentialSource
from cloudgpu.catalog.prices_and_quotas import quota_of
from cloudgpu.cli.commands.doctor import diagnostic_lines
from cloudgpu.cloud import Grant, Identity, PermissionResult, QuotaLimit
from cloudgpu.errors import AuthError, CloudError
from cloudgpu.paths import Home
from cloudgpu.plan.subnets import RegionNetwork, SubnetSeen
from cloudgpu.ssh.keys import ensure_key

GRANTS = (
    Grant("Look", "look at EC2", ("ec2:DescribeImages", "ec2:DescribeVpcs")),
    Grant("Launch", "launch instances", ("ec2:CreateFleet", "ec2:RunInstances")),
    Grant("Pass", "hand nodes their identity", ("iam:PassRole",)),
)
P, G = quota_of("p4d", "on-demand"), quota_of("g5", "on-demand")
ANN = Identity("111122223333", "arn:aws:iam::111122223333:user/ann", CredentialSource("research", "sso").label)

DEFAULT_VPC = RegionNetwork("vpc-1", is_default=True)


@dataclass
class ScriptedAccount:
    """An account with scripted responses."""

    states: dict[str, str] = field(default_factory=dict)
    vcpus: tuple[int | None, int | None] = (96, 0)
    refuses: CloudError | None = None
    roles: tuple[str, ...] = ("AWSServiceRoleForEC2Spot",)
    roles_refused: CloudError | None = None
    region_enabled: bool | None = True
    vpc: RegionNetwork | CloudError = DEFAULT_VPC

    def identity(self) -> Identity:
        if self.region_enabled is False:
            raise AuthError("the security token is invalid", code="InvalidClientTokenId")
        return ANN

    def service_roles(self):
        if self.roles_refused:
            raise self.roles_refused
        return self.roles

    def network(self, request):
        if isinstance(self.vpc, CloudError):
            raise self.vpc
        return self.vpc

    def zones(self):
        return ("us-east-1a", "us-east-1b") if self.vpc.subnets else ()

    def is_region_enabled(self):
        return self.region_enabled

    def permission_results(self, identity: Identity, grants):
        assert identity is ANN
        return [
            PermissionResult(action, self.states.get(action, "ok"), "dry run")
            for grant in grants
            for action in grant.actions
        ]

    def quotas(self):
        if self.refuses:
            raise self.refuses
        return [QuotaLimit(quota, "us-east-1", vcpus) for quota, vcpus in zip((P, G), self.vcpus, strict=True)]


def examined(account=None, *, machine=()):
    def opened():
        if isinstance(account, Exception):
            raise account
        return account or ScriptedAccount()

    return run_checks(target="aws", region="us-east-1", account=opened, grants=GRANTS, machine=machine)


@pytest.mark.parametrize("region", ["cn-north-1", "us-gov-west-1", "us-isob-east-1", "eusc-de-east-1"])
def test_region_of_another_partition_is_named_without_asking_aws(region):
    found = run_checks(target="aws", region=region, account=lambda: 1 / 0, grants=GRANTS, machine=())
    assert states(found)["region"] == "failed"
    assert f"region {region} is in " in found.failed[0].detail


OUTWARD = SubnetSeen("subnet-1", "us-east-1a", is_default=True, way_out="public", target="igw-1")
INWARD = SubnetSeen("subnet-2", "us-east-1b", is_default=True, way_out="none")
CREATE_SUBNET = "`aws ec2 create-default-subnet --availability-zone us-east-1b`"


@pytest.mark.parametrize(
    ("vpc", "expected"),
    [
        (
            RegionNetwork("vpc-1", is_default=True, subnets=(OUTWARD,)),
            [
                ("VPC", "ok", "default VPC vpc-1 in us-east-1", ""),
                (
                    "subnets",
                    "ok",
                    "1 default subnet with a route to the internet gateway igw-1: subnet-1 in us-east-1a",
                    "",
                ),
                ("subnets", "warning", "no default subnet in us-east-1b", CREATE_SUBNET),
            ],
        ),
        (
            RegionNetwork("vpc-1", is_default=True, subnets=(OUTWARD, INWARD)),
            [
                ("VPC", "ok", "default VPC vpc-1 in us-east-1", ""),
                (
                    "subnets",
                    "ok",
                    "1 default subnet with a route to the internet gateway igw-1: subnet-1 in us-east-1a",
                    "",
                ),
                ("subnets", "warning", "1 default subnet with no default route: subnet-2 in us-east-1b", ""),
            ],
        ),
        (
            RegionNetwork(missing="us-east-1 has no default VPC", is_default=True),
            [
                (
                    "VPC",
                    "failed",
                    "us-east-1 has no default VPC",
                    "set vpc_id, set create_vpc to true, or run `aws ec2 create-default-vpc --region us-east-1`",
                )
            ],
        ),
        (RegionNetwork(unknown="access denied"), [("VPC", "unknown", "access denied", "")]),
        (CloudError("no answer", code="Unreachable", hint="later"), [("VPC", "unknown", "no answer", "later")]),
    ],
)
def test_default_vpc_its_subnets_and_their_routes_are_reported(vpc, expected):
    found = examined(ScriptedAccount(vpc=vpc))
    network = [(row.name, row.state, row.detail, row.fix) for row in found.checks if row.name in ("VPC", "subnets")]
    assert network == expected


def states(diagnostic):
    return {check.name: check.state for check in diagnostic.checks}


def test_checks_are_unknown_without_credentials():
    found = examined(AuthError("no AWS credentials were found", code="NoCredentials", hint="aws configure"))
    assert states(found) == {"credentials": "unknown", "permissions": "unknown", "quotas": "unknown"}
    assert found.failed == ()


def test_checks_are_unknown_without_network():
    found = examined(CloudError("no answer", code="Unreachable", hint="check the network"))
    assert set(states(found).values()) == {"unknown"}


def test_expired_credentials_fail_with_login_command_as_fix():
    err = AuthError("credentials expired", code="UnauthorizedSSOTokenError", hint="aws sso login --profile research")
    found = examined(err)
    assert states(found) == {"credentials": "failed", "permissions": "unknown", "quotas": "unknown"}
    assert found.failed[0].fix == "aws sso login --profile research"


def test_denied_action_fails_the_check_and_is_named():
    found = examined(ScriptedAccount({"ec2:RunInstances": "failed", "ec2:CreateFleet": "unknown"}))
    (failed,) = found.failed
    assert (failed.name, failed.detail) == ("launch instances", "denied: ec2:RunInstances (dry run)")
    assert "--policy" in failed.fix
    assert {row["action"]: row["state"] for row in found.permissions}["ec2:RunInstances"] == "failed"


def test_long_list_of_unknown_actions_is_shortened_with_a_count():
    many = Grant("M", "many", tuple(f"iam:A{number}" for number in range(6)))
    account = ScriptedAccount({f"iam:A{number}": "unknown" for number in range(1, 6)})
    found = run_checks(target="aws", region="r", account=lambda: account, grants=(many,), machine=())
    (check,) = [check for check in found.checks if check.name == "many"]
    assert check.detail == "1 of 6 actions allowed, unknown: iam:A1, iam:A2, iam:A3, iam:A4 and 1 more (dry run)"


@pytest.mark.parametrize(
    ("vcpus", "expected"),
    [((96, 0), ("ok", "warning")), ((0, 0), ("failed", "failed")), ((0, None), ("failed", "unknown"))],
)
def test_missing_quota_fails_only_if_no_pool_has_any(vcpus, expected):
    found = states(examined(ScriptedAccount(vcpus=vcpus)))
    assert (found[f"quota {P.code}"], found[f"quota {G.code}"]) == expected


def test_missing_service_role_is_a_warning_with_the_command_that_creates_it():
    missing = {check.name: check for check in examined(ScriptedAccount(roles=())).checks}["role for spot instances"]
    assert (missing.state, missing.detail) == ("warning", "no service-linked role AWSServiceRoleForEC2Spot")
    assert missing.fix == "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com"


def test_roles_of_storage_are_checked_on_request():
    found = run_checks(
        target="aws",
        region="us-east-1",
        account=ScriptedAccount,
        grants=(),
        machine=(),
        service_roles=(SPOT, *STORAGE_ROLES),
    )
    fixes = {check.name: check.fix.rpartition(" ")[2] for check in found.checks if check.name.startswith("role for ")}
    assert fixes == {
        "role for spot instances": "",
        "role for EFS storage": "elasticfilesystem.amazonaws.com",
        "role for Lustre storage": "fsx.amazonaws.com",
    }


def test_unreadable_service_roles_are_unknown():
    found = examined(ScriptedAccount(roles_refused=AuthError("not allowed", code="AccessDenied")))
    assert states(found)["service-linked roles"] == "unknown"
    assert found.failed == ()


def test_region_that_is_not_enabled_fails_by_name_and_not_as_invalid_credentials():
    found = examined(ScriptedAccount(region_enabled=False))
    assert states(found) == {
        "region": "failed",
        "credentials": "unknown",
        "permissions": "unknown",
        "quotas": "unknown",
    }
    (failed,) = found.failed
    assert failed.detail == "us-east-1 is not enabled for this account"
    assert failed.fix.startswith("`aws account enable-region --region-name us-east-1`")


def test_unreadable_quotas_are_unknown():
    found = examined(ScriptedAccount(refuses=AuthError("reading the quotas: no", code="AccessDenied", hint="ask")))
    assert states(found)["quotas"] == "unknown"
    assert found.failed == ()


def test_diagnostic_text_lists_every_check_with_its_fix():
    machine = [lambda: Diagnosis("SSH key", "ok", "~/key SHA256:x"), lambda: Diagnosis("Docker", "warning", "no", "x")]
    account = ScriptedAccount({"ec2:CreateFleet": "failed", "iam:PassRole": "unknown"})
    assert diagnostic_lines(examined(account, machine=machine)) == [
        "ok       SSH key                    ~/key SHA256:x",
        "warning  Docker                     no",
        "                                    fix: x",
        "ok       credentials                account 111122223333, arn:aws:iam::111122223333:user/ann "
        "(profile research, single",
        "                                    sign-on)",
        "ok       look at EC2                2 actions allowed (dry run)",
        "failed   launch instances           denied: ec2:CreateFleet (dry run)",
        "                                    fix: attach the policy from `cloudgpu doctor --policy` to this identity",
        "unknown  hand nodes their identity  0 of 1 action allowed, unknown: iam:PassRole (dry run)",
        "ok       role for spot instances    AWSServiceRoleForEC2Spot",
        "ok       VPC                        default VPC vpc-1 in us-east-1",
        "ok       quota L-417A185B           96 vCPUs in us-east-1: Running On-Demand P instances",
        "warning  quota L-DB2E81BA           0 vCPUs in us-east-1: Running On-Demand G and VT instances",
        "                                    fix: request an increase: aws service-quotas "
        "request-service-quota-increase",
        "                                    --service-code ec2 --quota-code L-DB2E81BA --desired-value 96 --region "
        "us-east-1",
        "",
        "1 failed, 1 unknown, 2 warning, 6 ok",
    ]


def test_unwritable_state_home_fails_the_check(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert diagnostics.state_home(Home(tmp_path / "file" / "home")).state == "failed"
    assert diagnostics.state_home(Home(tmp_path / "home")).state == "ok"


def test_missing_or_invalid_ssh_key_fails_the_check(tmp_path: Path):
    path = tmp_path / "key"
    assert (diagnostics.ssh_key(path, "").state, diagnostics.ssh_key(path, "ann").state) == ("ok", "failed")
    key = ensure_key(path)
    assert key.fingerprint in diagnostics.ssh_key(path, "").detail
    path.write_text("nonsense")
    assert diagnostics.ssh_key(path, "").state == "failed"


@pytest.fixture
def path_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A PATH that contains only the programs created by the test."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")

    def program(name: str, body: str) -> None:
        script = tmp_path / "bin" / name
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    return program


def test_missing_pulumi_and_broken_docker_are_reported(path_of):
    assert diagnostics.pulumi_cli(needed=False).state == "warning"
    assert diagnostics.pulumi_cli(needed=True).state == "failed"
    path_of("pulumi", "echo v3.260.0")
    path_of("docker", "echo cannot connect >&2; exit 1")
    found = diagnostics.pulumi_cli(needed=True)
    assert (found.state, found.detail) == ("ok", "v3.260.0")
    assert diagnostics.docker() == replace(diagnostics.docker(), state="warning", detail="cannot connect")


def test_stopped_rehearsal_cloud_passes_the_check(home: Home):
    found = diagnostics.rehearsal_cloud(home)
    assert found.state == "ok"
    assert "not running" in found.detail
    assert not home.rehearsal.exists()
