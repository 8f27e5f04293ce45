"""A cluster keeps the engine that created it, and `down` works even if that engine is unusable."""

from datetime import UTC, datetime

import pytest

from cloudgpu.aws.session.session import CloudEndpoint
from cloudgpu.backends.aws.account import AwsAccount, CloudTarget
from cloudgpu.backends.aws.engines import Engines, pulumi_lines
from cloudgpu.backends.environment import ApiCallLog
from cloudgpu.engine.direct.engine import DirectEngine
from cloudgpu.engine.pulumi_cli.engine import PulumiEngine
from cloudgpu.errors import CapacityError, UsageError
from cloudgpu.settings import load
from tests.cluster_records import changed, cluster_record
from tests.manual_clock import ManualClock

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
RECORD = cluster_record(name="demo", team="vision", created_at=NOON, expires_at=NOON, region="us-east-1")


@pytest.fixture
def engines(tmp_path):
    def make(environ=None, **flags):
        flags = {"home": str(tmp_path / "home"), **flags}
        settings = load(flags=flags, environ={"LOGNAME": "ann"}, cwd=tmp_path)
        return Engines(
            settings, lambda region: None, CloudEndpoint(), environ or {"PATH": "/nowhere"}, ManualClock(NOON)
        )

    return make


@pytest.fixture
def cli(tmp_path):
    for name in ("pulumi", "pulumi-language-python"):
        path = tmp_path / "opt" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\necho v3.260.0\n")
        path.chmod(0o755)
    return tmp_path / "opt" / "pulumi"


def test_cluster_record_determines_the_engine(engines, cli):
    direct, pulumi = RECORD.identity, changed(RECORD, engine="pulumi").identity
    for requested in ("direct", "pulumi"):
        made = engines(engine=requested, pulumi_command=str(cli))
        assert isinstance(made.engine(direct, {}), DirectEngine)
        assert isinstance(made.engine(pulumi, {}), PulumiEngine)


def test_requested_engine_is_empty_unless_configured(engines):
    def requested(**flags):
        settings, clock = engines(**flags).settings, ManualClock(NOON)
        where = CloudTarget("aws", CloudEndpoint(), "")
        return AwsAccount(where, None, settings, clock, ApiCallLog(None, clock)).requested_engine

    assert requested() == ""
    assert requested(engine="direct") == "direct"
    assert requested(engine="pulumi") == "pulumi"


def test_missing_cli_rejects_only_the_pulumi_engine(engines, cli):
    assert isinstance(engines().engine(RECORD.identity, {}), DirectEngine)
    with pytest.raises(UsageError, match="needs the Pulumi CLI"):
        engines().engine(changed(RECORD, engine="pulumi").identity, {})
    found = engines({"PATH": str(cli.parent)}).engine(changed(RECORD, engine="pulumi").identity, {})
    assert isinstance(found, PulumiEngine)


def test_pulumi_lines_prepare_a_manual_pulumi_run(engines):
    from cloudgpu.paths import Home

    home = Home(engines().settings.home)
    lines = dict(line.removeprefix("export ").split("=", 1) for line in pulumi_lines(home))
    assert lines["PULUMI_HOME"] == str(home.pulumi / "by-hand" / "home")
    assert len(list((home.pulumi / "by-hand").rglob("pulumi-resource-aws"))) == 1


def test_new_cluster_record_names_its_engine(workspace, make):
    for requested, engine, name in (("", "direct", "a"), ("pulumi", "pulumi", "b")):
        workspace.cloud.requested_engine = requested
        cluster = workspace.provisioning.create(make.plan(make.candidate()), name)
        assert cluster.record.identity.engine == engine
        assert workspace.records.cluster(name).identity.engine == engine


@pytest.mark.parametrize("state", ["up", "making"])
def test_request_for_another_engine_is_rejected_without_changes(workspace, make, state):
    plan = make.plan(make.candidate())
    workspace.provisioning.create(plan, "demo")
    workspace.records.save_cluster(workspace.records.cluster("demo").in_state(state), workspace.clock.now())
    workspace.cloud.calls.clear()
    workspace.cloud.requested_engine = "pulumi"
    with pytest.raises(UsageError, match="created with the direct engine, not pulumi") as caught:
        workspace.provisioning.create(plan, "demo")
    assert "cloudgpu down demo" in caught.value.hint
    assert workspace.cloud.calls == []
    assert workspace.records.cluster("demo").state == state
    workspace.cloud.requested_engine = "direct"
    workspace.provisioning.create(plan, "demo")


def test_record_of_the_pulumi_engine_rejects_several_spot_nodes_without_changes(workspace, make):
    workspace.cloud.requested_engine = "pulumi"
    spot = make.candidate(market="spot")
    for candidates in ((spot,), (make.candidate(), spot)):
        with pytest.raises(UsageError, match="pulumi engine cannot launch the 2 spot nodes of cluster demo"):
            workspace.provisioning.create(make.plan(*candidates), "demo")
    assert workspace.records.cluster("demo") is None
    assert list(workspace.ledger.entries()) == []
    assert workspace.cloud.calls == []

    # an interrupted `up` left the record; the next command does not name the engine, so the plan cannot report it
    plan = make.plan(make.candidate())
    workspace.provisioning.create(plan, "demo")
    workspace.records.save_cluster(workspace.records.cluster("demo").in_state("making"), workspace.clock.now())
    workspace.cloud.calls.clear()
    workspace.cloud.requested_engine = ""
    with pytest.raises(UsageError) as caught:
        workspace.provisioning.create(make.plan(make.replace(plan.candidates[0], market="spot")), "demo")
    assert caught.value.hint == "use --engine direct, after `cloudgpu down demo` if an `up` was interrupted"
    assert workspace.cloud.calls == []
    assert workspace.records.cluster("demo").state == "making"

    workspace.cloud.requested_engine = "pulumi"
    one = make.plan(make.candidate(market="spot"), nodes=1)
    assert workspace.provisioning.create(one, "single").record.identity.engine == "pulumi"


def test_unusable_engine_fails_before_anything_is_recorded(workspace, make):
    def missing(record):
        raise UsageError("no CLI", hint="install it")

    workspace.cloud.engine = missing
    with pytest.raises(UsageError, match="no CLI"):
        workspace.provisioning.create(make.plan(make.candidate()), "demo")
    assert workspace.records.cluster("demo") is None
    assert list(workspace.ledger.entries()) == []


def test_down_without_engine_tool_deletes_resources_by_tag(workspace, make):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    workspace.cloud.orphans = [make.thing("instance", "i-0", "us-east-1")]

    def missing(record):
        raise UsageError("no CLI", hint="install it")

    workspace.cloud.engine = missing
    ended = workspace.teardown.down("demo", "us-east-1")
    assert ended.orphans == ("instance i-0",)
    assert workspace.records.cluster("demo") is None


def test_capacity_error_fails_over_under_the_pulumi_engine(workspace, make):
    workspace.cloud.requested_engine = "pulumi"
    workspace.cloud.refusals = {"us-east-1c": CapacityError("none", code="InsufficientInstanceCapacity")}
    cluster = workspace.provisioning.create(
        make.plan(make.candidate("us-east-1c"), make.candidate("us-east-1d")), "demo"
    )
    assert (cluster.record.placement.zone, cluster.record.identity.engine) == ("us-east-1d", "pulumi")
