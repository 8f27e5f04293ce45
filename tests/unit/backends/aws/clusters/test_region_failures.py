"""A region that fails or hangs keeps nobody's nodes running in another one, and is reported with what to type."""

import threading

import pytest

from cloudgpu.backends.aws.clusters.region_failures import RegionFailures
from cloudgpu.backends.aws.regions import AwsRegions
from cloudgpu.clock import SystemClock
from cloudgpu.errors import AuthError, CloudError, StateError, TeardownError

DENIED = AuthError("not authorized", code="UnauthorizedOperation", request_id="r", hint="check your permissions")


def moved(workspace, make):
    """A cluster that failed over from us-west-2 to us-east-1."""
    record = workspace.provisioning.up(make.plan(make.candidate()), "demo").record
    two = make.replace(record, regions=("us-west-2", "us-east-1"))
    return workspace.records.save_cluster(two, workspace.clock.now())


def failing(workspace, *regions, err=DENIED):
    search = workspace.cloud.search

    def asked(cluster, wanted):
        if set(wanted) & set(regions):
            raise err
        return search(cluster, wanted)

    workspace.cloud.search = asked


def own(record):
    return {"cloudgpu:owner": "ann", "cloudgpu:token": record.token}


def test_nodes_elsewhere_are_ended_and_the_failure_names_region_reason_and_command(workspace, make):
    record = moved(workspace, make)
    workspace.cloud.orphans = [make.thing("instance", "i-us-east-1c-0", "us-east-1", own(record))]
    failing(workspace, "us-west-2")
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert workspace.cloud.orphans == []
    assert caught.value.left == ("us-west-2: not authorized",)
    assert caught.value.message == "cluster demo is not confirmed deleted in us-west-2"
    assert caught.value.hint == "check your permissions; run `cloudgpu down demo` again"
    assert workspace.records.cluster("demo").state == "ending"
    # Its nodes are confirmed gone, so they cost nothing any more.
    assert workspace.ledger.entries(state="open") == ()


def test_recorded_nodes_are_ended_by_their_ids_where_no_search_is_answered(workspace, make):
    record = moved(workspace, make)
    failing(workspace, "us-east-1", "us-west-2", "global")
    workspace.cloud.destroy_fails = StateError("the journal is damaged")
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert ("terminate", "us-east-1", record.instance_ids) in workspace.cloud.calls
    assert {line.partition(":")[0] for line in caught.value.left} == {"us-east-1", "us-west-2"}
    assert len(workspace.ledger.entries(state="open")) == 1


def test_iam_that_fails_leaves_no_row_open(workspace, make):
    moved(workspace, make)
    failing(workspace, "global")
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert caught.value.left == ("IAM: not authorized",)
    assert workspace.ledger.entries(state="open") == ()
    assert workspace.records.cluster("demo") is not None


def test_a_region_that_hangs_delays_no_other(workspace, make):
    """The one answers only after the nodes of the other have ended."""
    record = moved(workspace, make)
    workspace.cloud.orphans = [make.thing("instance", "i-us-east-1c-0", "us-east-1", own(record))]
    ended = threading.Event()
    release, search = workspace.cloud.release, workspace.cloud.search

    def released(found):
        release(found)
        ended.set()

    def asked(cluster, wanted):
        if "us-west-2" in wanted:
            assert ended.wait(timeout=20)
        return search(cluster, wanted)

    workspace.cloud.release, workspace.cloud.search = released, asked
    assert workspace.teardown.down("demo", "us-east-1").known


def test_a_region_that_the_account_does_not_have_is_said_with_the_file_that_names_it(workspace, make):
    record = moved(workspace, make)
    workspace.records.save_cluster(make.replace(record, regions=("mars-1", "us-east-1")), workspace.clock.now())
    failing(workspace, "mars-1", err=CloudError("no answer: cannot connect"))
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    (line,) = caught.value.left
    assert line.startswith("mars-1: no answer: cannot connect (the region is not enabled in this account")
    assert str(workspace.home.cluster("demo").record) in line


def test_the_journals_tell_the_regions_when_the_record_and_the_ledger_do_not(workspace, make):
    moved(workspace, make)
    cluster = workspace.home.cluster("demo")
    cluster.record.unlink()
    cluster.journal("eu-west-1").write_text("")
    workspace.cloud.searched.clear()
    workspace.teardown.down("demo", "us-east-1")
    assert ("eu-west-1",) in workspace.cloud.searched


def test_one_error_of_the_only_region_is_raised_as_it_is():
    failures = RegionFailures("demo", ("us-east-1",))
    failures.add("us-east-1", DENIED)
    failures.add("us-east-1", DENIED)
    with pytest.raises(AuthError) as caught:
        failures.raise_any()
    assert caught.value is DENIED


@pytest.fixture
def regions():
    """Where the usual region refuses what the others answer."""
    asked = []

    class Session:
        def __init__(self, region):
            self.region = region

        def account(self):
            asked.append(self.region)
            if self.region == "us-west-2":
                raise DENIED
            return "111122223333"

    made = AwsRegions(Session, "us-west-2", SystemClock())
    made.asked = asked
    return made


def test_another_region_tells_the_account_when_the_usual_one_does_not(regions):
    assert regions.query_any_region(lambda session: session.account()) == "111122223333"
    assert regions.asked == ["us-west-2", "us-east-1"]


def test_without_credentials_no_other_region_is_asked(regions):
    asked = []

    def account(session):
        asked.append(session.region)
        raise AuthError("no credentials", code="NoCredentials")

    with pytest.raises(AuthError):
        regions.query_any_region(account)
    assert asked == ["us-west-2"]


@pytest.mark.parametrize(
    ("usual", "stand_in"),
    [("cn-north-1", "cn-northwest-1"), ("us-gov-east-1", "us-gov-west-1"), ("mars-1", "us-east-1")],
)
def test_stand_ins_are_of_the_same_partition(usual, stand_in):
    asked = []

    def account(session):
        asked.append(session)
        if session == usual:
            raise DENIED
        return "1"

    AwsRegions(lambda region: region, usual, SystemClock()).query_any_region(account)
    assert asked == [usual, stand_in]
