"""What `doctor` makes of answers, whoever gave them; and its whole text."""

import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cloudgpu.app.diagnostics import local_checks
from cloudgpu.app.diagnostics.check import Diagnosis
from cloudgpu.app.diagnostics.doctor import run_checks
from cloudgpu.aws.iam.grants import Grant
from cloudgpu.aws.iam.permission_probe import PermissionResult
from cloudgpu.aws.pricing.quotas import QuotaLimit
from cloudgpu.aws.session.credentials import CredentialSource
from cloudgpu.aws.session.session import Identity
from cloudgpu.catalog.quotas import quota_of
from cloudgpu.cli.render.doctor import diagnostic_lines
from cloudgpu.errors import AuthError, CloudError
from cloudgpu.paths import Home
from cloudgpu.ssh.keys import ensure_key

GRANTS = (
    Grant("Look", "look at EC2", ("ec2:DescribeImages", "ec2:DescribeVpcs")),
    Grant("Launch", "launch instances", ("ec2:CreateFleet", "ec2:RunInstances")),
    Grant("Pass", "hand nodes their identity", ("iam:PassRole",)),
)
P, G = quota_of("p4d", "on-demand"), quota_of("g5", "on-demand")
ANN = Identity("111122223333", "arn:aws:iam::111122223333:user/ann", CredentialSource("research", "sso"))


@dataclass
class Told:
    """An account that answers what it is told to."""

    states: dict[str, str] = field(default_factory=dict)
    vcpus: tuple[int | None, int | None] = (96, 0)
    refuses: CloudError | None = None

    def identity(self) -> Identity:
        return ANN

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
        return account or Told()

    return run_checks(target="aws", region="us-east-1", account=opened, grants=GRANTS, machine=machine)


def states(diagnostic):
    return {one.name: one.state for one in diagnostic.checks}


def test_with_no_account_nothing_failed_and_nothing_is_known():
    found = examined(AuthError("no AWS credentials were found", code="NoCredentials", hint="aws configure"))
    assert states(found) == {"credentials": "unknown", "permissions": "unknown", "quotas": "unknown"}
    assert found.failed == ()


def test_with_no_network_nothing_is_known():
    found = examined(CloudError("no answer", code="Unreachable", hint="check the network"))
    assert set(states(found).values()) == {"unknown"}


def test_credentials_that_expired_are_a_failure_with_what_to_type():
    err = AuthError("credentials expired", code="UnauthorizedSSOTokenError", hint="aws sso login --profile research")
    found = examined(err)
    assert states(found) == {"credentials": "failed", "permissions": "unknown", "quotas": "unknown"}
    assert found.failed[0].fix == "aws sso login --profile research"


def test_one_denied_action_is_a_failure_and_named():
    found = examined(Told({"ec2:RunInstances": "failed", "ec2:CreateFleet": "unknown"}))
    (failed,) = found.failed
    assert (failed.name, failed.detail) == ("launch instances", "denied: ec2:RunInstances (dry run)")
    assert "--policy" in failed.fix
    assert {row["action"]: row["state"] for row in found.permissions}["ec2:RunInstances"] == "failed"


def test_many_unknown_actions_are_counted():
    many = Grant("M", "many", tuple(f"iam:A{number}" for number in range(6)))
    told = Told({f"iam:A{number}": "unknown" for number in range(1, 6)})
    found = run_checks(target="aws", region="r", account=lambda: told, grants=(many,), machine=())
    (check,) = [one for one in found.checks if one.name == "many"]
    assert check.detail == "1 of 6 actions allowed, unknown: iam:A1, iam:A2, iam:A3, iam:A4 and 1 more (dry run)"


@pytest.mark.parametrize(
    ("vcpus", "expected"),
    [((96, 0), ("ok", "warning")), ((0, 0), ("failed", "failed")), ((0, None), ("failed", "unknown"))],
)
def test_no_quota_at_all_is_a_failure_and_a_pool_without_one_a_warning(vcpus, expected):
    found = states(examined(Told(vcpus=vcpus)))
    assert (found[f"quota {P.code}"], found[f"quota {G.code}"]) == expected


def test_quotas_that_may_not_be_read_are_unknown():
    found = examined(Told(refuses=AuthError("reading the quotas: no", code="AccessDenied", hint="ask")))
    assert states(found)["quotas"] == "unknown"
    assert found.failed == ()


def test_the_whole_text():
    machine = [lambda: Diagnosis("SSH key", "ok", "~/key SHA256:x"), lambda: Diagnosis("Docker", "warning", "no", "x")]
    told = Told({"ec2:CreateFleet": "failed", "iam:PassRole": "unknown"})
    assert diagnostic_lines(examined(told, machine=machine)) == [
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
        "ok       quota L-417A185B           96 vCPUs in us-east-1: Running On-Demand P instances",
        "warning  quota L-DB2E81BA           0 vCPUs in us-east-1: Running On-Demand G and VT instances",
        "                                    fix: request an increase:",
        "                                    https://us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/"
        "quotas/L-DB2E81BA",
        "",
        "1 failed, 1 unknown, 2 warning, 4 ok",
    ]


def test_a_home_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert local_checks.state_home(Home(tmp_path / "file" / "home")).state == "failed"
    assert local_checks.state_home(Home(tmp_path / "home")).state == "ok"


def test_keys(tmp_path: Path):
    path = tmp_path / "key"
    assert (local_checks.ssh_key(path, "").state, local_checks.ssh_key(path, "ann").state) == ("ok", "failed")
    key = ensure_key(path)
    assert key.fingerprint in local_checks.ssh_key(path, "").detail
    path.write_text("nonsense")
    assert local_checks.ssh_key(path, "").state == "failed"


@pytest.fixture
def path_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A PATH on which only what the test makes is found."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")

    def program(name: str, body: str) -> None:
        script = tmp_path / "bin" / name
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    return program


def test_programs(path_of):
    assert local_checks.pulumi_cli(needed=False).state == "warning"
    assert local_checks.pulumi_cli(needed=True).state == "failed"
    path_of("pulumi", "echo v3.260.0")
    path_of("docker", "echo cannot connect >&2; exit 1")
    found = local_checks.pulumi_cli(needed=True)
    assert (found.state, found.detail) == ("ok", "v3.260.0")
    assert local_checks.docker() == replace(local_checks.docker(), state="warning", detail="cannot connect")


def test_a_rehearsal_cloud_that_does_not_run_is_no_fault(home: Home):
    found = local_checks.rehearsal_cloud(home)
    assert found.state == "ok"
    assert "not running" in found.detail
    assert not home.rehearsal.exists()
