"""A cluster keeps the engine that it was begun with; one that cannot work is no reason to leave nodes running."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cloudgpu.aws.session.session import CloudEndpoint
from cloudgpu.backends.aws.engines import Engines, pulumi_lines
from cloudgpu.clock import ManualClock
from cloudgpu.engine.direct.engine import DirectEngine
from cloudgpu.engine.pulumi_cli.engine import PulumiEngine
from cloudgpu.errors import CapacityError, UsageError
from cloudgpu.settings import load
from cloudgpu.state.cluster_and_run_records import ClusterRecord

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
RECORD = ClusterRecord("demo", "t", "ann", "vision", "plain", "aws", "1", "", NOON, NOON, "up", region="us-east-1")


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


def test_the_record_decides(engines, cli):
    direct, pulumi = RECORD, replace(RECORD, engine="pulumi")
    for asked in ("direct", "pulumi"):
        made = engines(engine=asked, pulumi_command=str(cli))
        assert isinstance(made.engine(direct, {}), DirectEngine)
        assert isinstance(made.engine(pulumi, {}), PulumiEngine)


def test_only_what_somebody_named_was_asked_for(engines):
    assert engines().asked_for == ""
    assert engines(engine="direct").asked_for == "direct"
    assert engines(engine="pulumi").asked_for == "pulumi"


def test_without_the_cli_only_the_pulumi_engine_is_refused(engines, cli):
    assert isinstance(engines().engine(RECORD, {}), DirectEngine)
    with pytest.raises(UsageError, match="needs the Pulumi CLI"):
        engines().engine(replace(RECORD, engine="pulumi"), {})
    found = engines({"PATH": str(cli.parent)}).engine(replace(RECORD, engine="pulumi"), {})
    assert isinstance(found, PulumiEngine)


def test_the_lines_for_a_pulumi_run_by_hand(engines):
    from cloudgpu.paths import Home

    home = Home(engines().settings.home)
    lines = dict(line.removeprefix("export ").split("=", 1) for line in pulumi_lines(home))
    assert lines["PULUMI_HOME"] == str(home.pulumi / "by-hand" / "home")
    assert len(list((home.pulumi / "by-hand").rglob("pulumi-resource-aws"))) == 1


def test_a_new_clusters_record_names_its_engine(workspace, make):
    for asked, engine, name in (("", "direct", "a"), ("pulumi", "pulumi", "b")):
        workspace.cloud.requested_engine = asked
        standing = workspace.provisioning.up(make.plan(make.candidate()), name)
        assert standing.record.engine == engine
        assert workspace.records.cluster(name).engine == engine


@pytest.mark.parametrize("state", ["up", "making"])
def test_another_engine_is_refused_and_changes_nothing(workspace, make, state):
    plan = make.plan(make.candidate())
    workspace.provisioning.up(plan, "demo")
    workspace.records.save_cluster(replace(workspace.records.cluster("demo"), state=state), workspace.clock.now())
    workspace.cloud.calls.clear()
    workspace.cloud.requested_engine = "pulumi"
    with pytest.raises(UsageError, match="created with the direct engine, not pulumi") as caught:
        workspace.provisioning.up(plan, "demo")
    assert "cloudgpu down demo" in caught.value.hint
    assert workspace.cloud.calls == []
    assert workspace.records.cluster("demo").state == state
    workspace.cloud.requested_engine = "direct"
    workspace.provisioning.up(plan, "demo")


def test_an_engine_that_cannot_work_says_so_before_anything_is_written(workspace, make):
    def missing(record):
        raise UsageError("no CLI", hint="install it")

    workspace.cloud.engine = missing
    with pytest.raises(UsageError, match="no CLI"):
        workspace.provisioning.up(make.plan(make.candidate()), "demo")
    assert workspace.records.cluster("demo") is None
    assert list(workspace.ledger.entries()) == []


def test_down_without_the_engines_tool_ends_everything_by_tag(workspace, make):
    workspace.provisioning.up(make.plan(make.candidate()), "demo")
    workspace.cloud.orphans = [make.thing("instance", "i-0", "us-east-1")]

    def missing(record):
        raise UsageError("no CLI", hint="install it")

    workspace.cloud.engine = missing
    ended = workspace.teardown.down("demo", "us-east-1")
    assert ended.orphans == ("instance i-0",)
    assert workspace.records.cluster("demo") is None


def test_a_refusal_under_either_engine_moves_on(workspace, make):
    workspace.cloud.requested_engine = "pulumi"
    workspace.cloud.refusals = {"us-east-1c": CapacityError("none", code="InsufficientInstanceCapacity")}
    standing = workspace.provisioning.up(make.plan(make.candidate("us-east-1c"), make.candidate("us-east-1d")), "demo")
    assert (standing.record.zone, standing.record.engine) == ("us-east-1d", "pulumi")
