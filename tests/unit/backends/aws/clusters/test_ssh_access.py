"""Who gets in: rules that somebody changed are put right, and who goes on without that is told why."""

from dataclasses import replace
from pathlib import Path

import pytest

from cloudgpu.app.access import ssh
from cloudgpu.app.access.authorization import authorize_if_possible
from cloudgpu.backends.aws.clusters.ssh_access import authorize_ssh
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import AuthError, BusyError, ConnectError, HostKeyError

LINE = "security group sg-1: tcp 22 from 0.0.0.0/0 was allowed"


@pytest.fixture
def record(workspace, make):
    return workspace.provisioning.up(make.plan(make.candidate()), "demo").record


def test_a_rule_that_somebody_added_is_taken_away(workspace, record):
    workspace.cloud.drifted = (LINE,)
    assert authorize_ssh(workspace.context, record) == record
    assert workspace.cloud.calls[-1] == ("mend", "us-east-1", (LINE,))
    assert workspace.notes[-1] == f"repaired: {LINE}"


def test_rules_as_they_should_be_are_left_alone(workspace, record):
    workspace.cloud.calls.clear()
    authorize_ssh(workspace.context, record)
    assert workspace.cloud.calls == []


def test_who_is_at_the_cluster_meanwhile_is_not_disturbed(workspace, record):
    workspace.cloud.drifted = (LINE,)
    with ClusterLease(workspace.home.cluster("demo").root / "lease", workspace.clock, "bob").hold(tidy=True):
        authorize_ssh(workspace.context, record)
    assert ("mend", "us-east-1", (LINE,)) not in workspace.cloud.calls
    assert workspace.notes[-1].startswith("not repaired, ")
    assert workspace.notes[-1].endswith(LINE)


def test_who_cannot_ask_the_cloud_is_told_and_goes_on(workspace, record):
    workspace.cloud.cidr = AuthError("the credentials have expired")
    assert authorize_if_possible(workspace.context, record) == record
    assert workspace.notes[-1] == "SSH access to cluster demo is unchanged: the credentials have expired"


def test_another_accounts_rules_are_nobodys_business(workspace, record):
    workspace.cloud.account_id = "999900001111"
    workspace.cloud.drifted = (LINE,)
    assert authorize_if_possible(workspace.context, record) == record
    assert workspace.cloud.drifted == (LINE,)


class Login:
    """`ssh`, with a node that answers as often as it is told to."""

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


def test_ssh_opens_the_way_only_where_a_node_does_not_answer(workspace, record, monkeypatch):
    straight = Login(workspace, monkeypatch, ["ssh"])
    assert (straight.run(), straight.admitted) == (["ssh"], [])
    moved = Login(workspace, monkeypatch, ConnectError("no answer"), ["ssh"])
    assert moved.run() == ["ssh"]
    assert [one.name for one in moved.admitted] == ["demo"]


def test_ssh_opens_nothing_for_a_host_that_is_another(workspace, record, monkeypatch):
    wrong = Login(workspace, monkeypatch, HostKeyError("another key"))
    with pytest.raises(HostKeyError):
        wrong.run()
    assert wrong.admitted == []


def test_a_caller_that_moved_waits_for_nobody(workspace, record):
    workspace.cloud.cidr = "198.51.100.7/32"
    with (
        ClusterLease(workspace.home.cluster("demo").root / "lease", workspace.clock, "bob").hold(tidy=True),
        pytest.raises(BusyError),
    ):
        authorize_ssh(workspace.context, record)


def test_by_session_manager_nobody_is_let_in_wherever_the_caller_is(workspace, record):
    carried = workspace.records.save_cluster(
        replace(record, config={**record.config, "reach": "ssm"}), workspace.clock.now()
    )
    workspace.cloud.cidr = ConnectError("asked for nothing")
    assert authorize_ssh(workspace.context, carried) == carried
    assert not any("unchanged" in note for note in workspace.notes)


def test_behind_a_jump_host_its_own_address_stays_the_one_that_is_let_in(workspace, record):
    path = workspace.home.cluster("demo").inventory
    path.write_text(path.read_text().replace('"bastion": ""', '"bastion": "ann@gate.example.org"'))
    workspace.cloud.cidr = "198.51.100.7/32"
    assert authorize_ssh(workspace.context, record).config["sshCidr"] == "127.0.0.1/32"
