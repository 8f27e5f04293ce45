"""A failing or hanging region does not keep nodes running in another one, and is reported with a command."""

import threading
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cloudgpu.aws.session.session import CloudEndpoint
from cloudgpu.backends.aws.account import AwsAccount, CloudTarget
from cloudgpu.backends.aws.clusters.storage import ClusterStorage
from cloudgpu.backends.aws.clusters.verified_deletion import RegionFailures
from cloudgpu.backends.environment import ApiCallLog
from cloudgpu.backends.storage import StorageOutcome
from cloudgpu.clock import SystemClock
from cloudgpu.errors import AuthError, BusyError, CloudError, StateError, TeardownError, UsageError, renewable_cause
from cloudgpu.state.storage_records import AttachedStorage
from tests.cluster_records import changed

DENIED = AuthError("not authorized", code="UnauthorizedOperation", request_id="r", hint="check your permissions")


def moved(workspace, make):
    """A cluster that failed over from us-west-2 to us-east-1."""
    record = workspace.provisioning.create(make.plan(make.candidate()), "demo").record
    failed_over = changed(record, regions=("us-west-2", "us-east-1"))
    return workspace.records.save_cluster(failed_over, workspace.clock.now())


def failing(workspace, *regions, err=DENIED):
    search = workspace.cloud.search

    def failing_search(cluster, wanted):
        if set(wanted) & set(regions):
            raise err
        return search(cluster, wanted)

    workspace.cloud.search = failing_search


def own(record):
    return {"cloudgpu:owner": "ann", "cloudgpu:token": record.identity.token}


def test_failed_region_is_reported_and_nodes_elsewhere_deleted(workspace, make):
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
    # Its nodes are confirmed terminated, so they cost nothing more.
    assert workspace.ledger.entries(state="open") == ()


def test_recorded_nodes_are_terminated_by_id_if_search_fails(workspace, make):
    record = moved(workspace, make)
    failing(workspace, "us-east-1", "us-west-2", "global")
    workspace.cloud.destroy_fails = StateError("the journal is damaged")
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert ("terminate", "us-east-1", record.placement.instance_ids) in workspace.cloud.calls
    assert {line.partition(":")[0] for line in caught.value.left} == {"us-east-1", "us-west-2"}
    assert len(workspace.ledger.entries(state="open")) == 1


def test_nodes_are_terminated_although_the_search_that_looked_for_them_failed(workspace, make):
    record = moved(workspace, make)
    workspace.home.cluster("demo").record.unlink()
    workspace.home.cluster("demo").journal("us-west-2").write_text("")
    workspace.cloud.orphans = [make.thing("instance", "i-west", "us-west-2", own(record))]
    search, failures = workspace.cloud.search, [DENIED]

    def fails_once(cluster, wanted):
        if "us-west-2" in wanted and failures:
            raise failures.pop()
        return search(cluster, wanted)

    workspace.cloud.search = fails_once
    with pytest.raises(TeardownError, match="not confirmed deleted in us-west-2"):
        workspace.teardown.down("demo", "us-east-1")
    assert workspace.cloud.orphans == []


@pytest.mark.parametrize(
    ("region", "ended"), [("us-east-1", ["us-west-2"]), ("us-west-2", ["us-east-1"]), ("", ["us-east-1", "us-west-2"])]
)
def test_storage_stays_only_in_regions_where_nodes_may_use_it(workspace, make, monkeypatch, region, ended):
    """Its region is that of the nodes or, if a launch was killed, that of an earlier attempt."""
    record = moved(workspace, make)
    rows = tuple(
        AttachedStorage(f"sets-{where}", "sets", "efs", where, "", "/sets", "rw", ends=True)
        for where in ("us-east-1", "us-west-2")
    )
    workspace.records.save_cluster(
        replace(record, placement=replace(record.placement, storage=rows)), workspace.clock.now()
    )
    if region:
        failing(workspace, region)
    seen = []
    monkeypatch.setattr(
        ClusterStorage, "delete_marked", lambda _, _record, where: seen.append(where) or StorageOutcome((where,))
    )
    with pytest.raises(TeardownError) if region else nullcontext():
        assert workspace.teardown.down("demo", "us-east-1").storage.ended == ("us-east-1", "us-west-2")
    assert seen == ended


def test_failed_iam_search_leaves_no_ledger_row_open(workspace, make):
    moved(workspace, make)
    failing(workspace, "global")
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert caught.value.left == ("IAM: not authorized",)
    assert workspace.ledger.entries(state="open") == ()
    assert workspace.records.cluster("demo") is not None


def test_hanging_region_does_not_delay_other_regions(workspace, make):
    """One region responds only after the nodes in the other are terminated."""
    record = moved(workspace, make)
    workspace.cloud.orphans = [make.thing("instance", "i-us-east-1c-0", "us-east-1", own(record))]
    ended = threading.Event()
    release, search = workspace.cloud.release, workspace.cloud.search

    def released(found, on_wait):
        release(found)
        ended.set()

    def hanging_search(cluster, wanted):
        if "us-west-2" in wanted:
            assert ended.wait(timeout=20)
        return search(cluster, wanted)

    workspace.cloud.release, workspace.cloud.search = released, hanging_search
    assert workspace.teardown.down("demo", "us-east-1").known


def test_region_not_in_account_is_reported_with_its_record_file(workspace, make):
    record = moved(workspace, make)
    workspace.records.save_cluster(changed(record, regions=("mars-1", "us-east-1")), workspace.clock.now())
    failing(workspace, "mars-1", err=CloudError("no answer: cannot connect"))
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    (line,) = caught.value.left
    assert line.startswith("mars-1: no answer: cannot connect (the region is not enabled in this account")
    assert str(workspace.home.cluster("demo").record) in line


def test_journals_give_the_regions_without_record_and_ledger(workspace, make):
    moved(workspace, make)
    cluster = workspace.home.cluster("demo")
    cluster.record.unlink()
    cluster.journal("eu-west-1").write_text("")
    workspace.cloud.searched.clear()
    workspace.teardown.down("demo", "us-east-1")
    assert ("eu-west-1",) in workspace.cloud.searched


@pytest.mark.parametrize(
    "cause", [DENIED, BusyError("in use"), UsageError("no such thing", hint="correct it")], ids=repr
)
def test_any_single_error_of_the_only_region_is_a_teardown_error(cause):
    failures = RegionFailures("demo", ("us-east-1",))
    failures.add("us-east-1", cause)
    failures.add("us-east-1", cause)
    with pytest.raises(TeardownError) as caught:
        failures.raise_any()
    assert caught.value.exit_code == 6
    assert caught.value.left == (f"us-east-1: {cause.message}",)
    assert caught.value.hint == "; ".join(filter(None, [cause.hint, "run `cloudgpu down demo` again"]))
    assert caught.value.__cause__ is cause


def test_single_teardown_error_of_the_only_region_is_raised_unchanged():
    """It already describes what is left and what to do."""
    failures, left = RegionFailures("demo", ("us-east-1",)), TeardownError("shutting down", left=["instance i-1"])
    failures.add("us-east-1", left)
    with pytest.raises(TeardownError) as caught:
        failures.raise_any()
    assert caught.value is left


def account_in(region, session):
    """Return an account with this configured region, whose sessions are returned by `session`."""
    clock, settings = SystemClock(), SimpleNamespace(region=region, aws_profile="")
    account = AwsAccount(CloudTarget("aws", CloudEndpoint(), ""), None, settings, clock, ApiCallLog(None, clock))
    account.session = session
    return account


def expired():
    """An error that new credentials solve, as the deletion of one of several resources reports it."""
    cause, err = (
        AuthError("credentials expired"),
        TeardownError("1 of 2 resources could not be deleted", left=["vpc-1"]),
    )
    cause.renewable = True
    err.__cause__ = cause
    return err


def test_expired_credentials_are_found_behind_other_failures(monkeypatch):
    """A command then waits for new credentials instead of leaving the cluster behind."""
    failures = RegionFailures("demo", ["us-east-1", "us-west-2"])
    failures.add("us-east-1", CloudError("throttled"))
    failures.add("us-west-2", expired())
    with pytest.raises(TeardownError) as caught:
        failures.raise_any()
    assert renewable_cause(caught.value).message == "credentials expired"

    errors = {"us-east-1": CloudError("throttled"), "us-west-2": expired()}
    found = [SimpleNamespace(region=region) for region in errors]

    def fail(region, *_):
        raise errors[region]

    monkeypatch.setattr("cloudgpu.aws.ec2.tag_search.release", fail)
    with pytest.raises(TeardownError) as caught:
        account_in("us-east-1", lambda region: region).release(found)
    assert renewable_cause(caught.value).message == "credentials expired"


@pytest.fixture
def regions():
    """Regions of which only the default one rejects the query."""
    queried = []

    class Session:
        def __init__(self, region):
            self.region = region

        def account(self):
            queried.append(self.region)
            if self.region == "us-west-2":
                raise DENIED
            return "111122223333"

    made = account_in("us-west-2", Session)
    made.queried = queried
    return made


def test_another_region_answers_account_query_if_default_fails(regions):
    assert regions.query_any_region(lambda session: session.account()) == "111122223333"
    assert regions.queried == ["us-west-2", "us-east-1"]


def test_missing_credentials_are_not_retried_in_another_region(regions):
    queried = []

    def account(session):
        queried.append(session.region)
        raise AuthError("no credentials", code="NoCredentials")

    with pytest.raises(AuthError):
        regions.query_any_region(account)
    assert queried == ["us-west-2"]


@pytest.mark.parametrize(
    ("usual", "stand_in"),
    [("cn-north-1", "cn-northwest-1"), ("us-gov-east-1", "us-gov-west-1"), ("mars-1", "us-east-1")],
)
def test_fallback_region_is_in_the_same_partition(usual, stand_in):
    queried = []

    def account(session):
        queried.append(session)
        if session == usual:
            raise DENIED
        return "1"

    account_in(usual, lambda region: region).query_any_region(account)
    assert queried == [usual, stand_in]
