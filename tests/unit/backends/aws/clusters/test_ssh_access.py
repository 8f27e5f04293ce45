"""SSH access: security group drift is repaired, and a skipped repair is reported with its reason."""

from pathlib import Path

import pytest

from cloudgpu.app import ssh
from cloudgpu.app.cluster_status import authorize_if_possible
from cloudgpu.backends.aws.clusters.ssh_access import authorize_ssh
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import AuthError, BusyError, ConnectError, HostKeyError
from tests.cluster_records import changed

LINE = "security group sg-1: an extra rule allowed tcp 22 from 0.0.0.0/0"


@pytest.fixture
def record(workspace, make):
    return workspace.provisioning.create(make.plan(make.candidate()), "demo").record


def test_extra_security_group_rule_is_removed(workspace, record):
    workspace.cloud.drifted = (LINE,)
    assert authorize_ssh(workspace.context, record) == record
    assert workspace.cloud.calls[-1] == ("mend", "us-east-1", (LINE,))
    assert workspace.notes[-1] == f"repaired: {LINE}"


def test_unchanged_security_group_rules_are_left_alone(workspace, record):
    workspace.cloud.calls.clear()
    authorize_ssh(workspace.context, record)
    assert workspace.cloud.calls == []


def test_drift_is_not_repaired_while_cluster_is_leased(workspace, record):
    workspace.cloud.drifted = (LINE,)
    with ClusterLease(workspace.home.cluster("demo").root / "lease", workspace.clock, "bob").hold(tidy=True):
        authorize_ssh(workspace.context, record)
    assert ("mend", "us-east-1", (LINE,)) not in workspace.cloud.calls
    assert workspace.notes[-1].startswith("not repaired, ")
    assert workspace.notes[-1].endswith(LINE)


def test_authorization_failure_is_reported_and_ignored(workspace, record):
    workspace.cloud.cidr = AuthError("the credentials have expired")
    assert authorize_if_possible(workspace.context, record) == record
    assert workspace.notes[-1] == "cannot authorize SSH from your address to cluster demo: the credentials have expired"


def test_security_group_drift_in_another_account_is_not_repaired(workspace, record):
    workspace.cloud.account_id = "999900001111"
    workspace.cloud.drifted = (LINE,)
    assert authorize_if_possible(workspace.context, record) == record
    assert workspace.cloud.drifted == (LINE,)


class Login:
    """`ssh` to a node with scripted responses."""

    def __init__(self, workspace, monkeypatch, *answers):
        self.workspace, self.answers, self.admitted = workspace, list(answers), []
        monkeypatch.setattr(ssh, "_argv", self._argv)

    def _argv(self, *_):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self):
        workspace = self.workspace
        means = ssh.NodeLogin(Path("key"), workspace.clock, None, lambda cluster, index: [], self.admitted.append)
        return ssh.build_login_command(workspace.records, workspace.home, means, cluster="demo", index=0)


def test_ssh_authorizes_the_caller_only_if_node_does_not_answer(workspace, record, monkeypatch):
    straight = Login(workspace, monkeypatch, ["ssh"])
    assert (straight.run(), straight.admitted) == (["ssh"], [])
    moved = Login(workspace, monkeypatch, ConnectError("no answer"), ["ssh"])
    assert moved.run() == ["ssh"]
    assert [cluster.name for cluster in moved.admitted] == ["demo"]


def test_ssh_authorizes_nothing_after_host_key_mismatch(workspace, record, monkeypatch):
    wrong = Login(workspace, monkeypatch, HostKeyError("another key"))
    with pytest.raises(HostKeyError):
        wrong.run()
    assert wrong.admitted == []


def test_caller_with_new_address_gets_busy_error_during_lease(workspace, record):
    workspace.cloud.cidr = "198.51.100.7/32"
    with (
        ClusterLease(workspace.home.cluster("demo").root / "lease", workspace.clock, "bob").hold(tidy=True),
        pytest.raises(BusyError),
    ):
        authorize_ssh(workspace.context, record)


def test_session_manager_cluster_needs_no_caller_address(workspace, record):
    carried = workspace.records.save_cluster(
        changed(record, config={**record.placement.config, "reach": "ssm"}), workspace.clock.now()
    )
    workspace.cloud.cidr = ConnectError("asked for nothing")
    assert authorize_ssh(workspace.context, carried) == carried
    assert not any("unchanged" in note for note in workspace.notes)


def test_cluster_behind_jump_host_keeps_its_authorized_address(workspace, record):
    path = workspace.home.cluster("demo").inventory
    path.write_text(path.read_text().replace('"bastion": ""', '"bastion": "ann@gate.example.org"'))
    workspace.cloud.cidr = "198.51.100.7/32"
    assert authorize_ssh(workspace.context, record).placement.config["sshCidr"] == "127.0.0.1/32"
