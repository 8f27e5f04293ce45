"""`sweep` searches every region, treats failures as unknown, and deletes only what it may."""

from datetime import timedelta

import pytest

from cloudgpu.app.cluster_status import list_cluster_statuses
from cloudgpu.backends.aws.sweep import AccountSweep
from cloudgpu.backends.sweep import SweepRequest, sweep_error
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import AuthError, CloudError, UsageError
from tests.tagged_resource import Resource

REGIONS = ("eu-west-1", "us-east-1", "us-west-2")
PAST = "2026-11-20T00:00:00Z"
LATER = "2026-11-22T00:00:00Z"


@pytest.fixture
def account(workspace):
    """An account with three regions. Resources are in `workspace.cloud.orphans`; `silent` regions fail."""
    cloud = workspace.cloud
    cloud.silent = {}
    cloud.queried = []

    def anybodys(region):
        cloud.queried.append(region)
        if region in cloud.silent:
            raise cloud.silent[region]
        return [resource for resource in (*cloud.orphans, *cloud.stubborn) if resource.region == region]

    cloud.regions = lambda: REGIONS
    cloud.anybodys = anybodys
    return workspace


def thing(name, *, owner="ann", expires=LATER, region="us-east-1", kind="instance", cluster="lab", token="t"):
    tags = {"cloudgpu:cluster": cluster, "cloudgpu:owner": owner, "cloudgpu:token": token}
    return Resource(kind, name, region, {**tags, "cloudgpu:expires-at": expires})


class NoImages:
    def found(self, region, name=""):
        return []


def look(workspace, *regions, **request):
    return AccountSweep(workspace.context, NoImages(), "us-east-1").plan(regions, SweepRequest("ann", **request))


def end(workspace, seen):
    return AccountSweep(workspace.context, NoImages(), "us-east-1").delete_clusters(seen)


def test_every_enabled_region_and_iam_are_searched_once(account):
    assert look(account).regions == REGIONS
    assert sorted(account.cloud.queried) == sorted([*REGIONS, "global"])


def test_sweep_of_named_regions_skips_other_regions_and_iam(account):
    assert look(account, "us-west-2").regions == ("us-west-2",)
    assert account.cloud.queried == ["us-west-2"]
    with pytest.raises(UsageError, match="regions not enabled in this account: nowhere-1"):
        look(account, "nowhere-1")


def test_failed_region_is_unknown_rather_than_empty(account):
    account.cloud.orphans = [thing("i-1"), thing("role-1", kind="role", region="global")]
    account.cloud.silent = {"us-west-2": CloudError("cannot reach ec2.us-west-2")}
    seen = look(account)
    assert seen.regions == ("eu-west-1", "us-east-1")
    assert seen.unknown == (
        ("us-west-2", "cannot reach ec2.us-west-2"),
        ("global", "left unchanged while a region cannot be searched"),
    )
    swept = end(account, seen)
    # Its role may be in use in the region that did not respond.
    assert [resource.id for resource in account.cloud.orphans] == ["role-1"]
    err = sweep_error(seen, swept)
    assert err.exit_code == 6
    assert err.left[0] == "us-west-2: unknown: cannot reach ec2.us-west-2"


def test_sweep_succeeds_if_all_regions_respond_and_all_is_deleted(account):
    account.cloud.orphans = [thing("i-1"), thing("vol-1", kind="volume")]
    seen = look(account)
    swept = end(account, seen)
    assert [cluster.cluster for cluster in swept.ended] == ["lab"]
    assert account.cloud.orphans == []
    assert sweep_error(seen, swept) is None


def test_cluster_of_another_owner_is_deleted_only_on_request(account):
    account.cloud.orphans = [thing("i-1", owner="bob", cluster="his")]
    assert look(account).clusters_to_delete == ()
    seen = look(account, owners=frozenset({"bob"}))
    end(account, seen)
    assert account.cloud.orphans == []


def test_owner_filter_hides_clusters_of_other_owners(account):
    account.cloud.orphans = [thing("i-1"), thing("i-2", owner="bob", cluster="his", expires=PAST)]
    assert [cluster.cluster for cluster, _ in look(account, owners=frozenset({"bob"})).clusters] == ["his"]


def test_leftover_resource_is_reported_and_other_clusters_deleted(account):
    account.cloud.stubborn = [thing("vol-1", kind="volume", cluster="bad", token="b")]
    account.cloud.orphans = [thing("i-1")]
    seen = look(account)
    swept = end(account, seen)
    assert [cluster.cluster for cluster in swept.ended] == ["lab"]
    err = sweep_error(seen, swept)
    assert err.message == "1 cluster is not confirmed deleted"
    assert err.left == ("bad: volume vol-1 in us-east-1",)


def test_failed_cluster_deletion_does_not_stop_the_others(account):
    account.cloud.orphans = [thing("i-1"), thing("i-2", cluster="bad", token="b")]
    release = account.cloud.release

    def refuse(found, on_wait):
        if found[0].id == "i-2":
            raise AuthError("the token has expired")
        release(found)

    account.cloud.release = refuse
    seen = look(account)
    swept = end(account, seen)
    assert [cluster.cluster for cluster in swept.ended] == ["lab"]
    assert sweep_error(seen, swept).left == ("bad: us-east-1: the token has expired",)


def test_sweep_of_recorded_cluster_removes_record_and_closes_ledger(account, make):
    record = account.provisioning.create(make.plan(make.candidate()), "lab").record
    account.cloud.orphans = [
        thing("i-1", token=record.identity.token, expires=f"{record.lifecycle.expires_at:%Y-%m-%dT%H:%M:%SZ}")
    ]
    assert look(account).clusters_to_delete == ()
    seen = look(account, all_mine=True)
    assert sweep_error(seen, end(account, seen)) is None
    assert ("destroy", "us-east-1", "") in account.cloud.calls
    assert account.records.clusters() == []
    assert account.ledger.entries(state="open") == ()


def test_leased_cluster_is_not_deleted(account, make):
    record = account.provisioning.create(make.plan(make.candidate()), "lab").record
    account.cloud.orphans = [thing("i-1", token=record.identity.token)]
    with ClusterLease(account.home.cluster("lab").root / "lease", account.clock, "ann").hold():
        ((_, what),) = look(account, all_mine=True).clusters
    assert not what.may_delete


def test_sweep_without_record_closes_the_ledger_row_by_token(account, make):
    record = account.provisioning.create(make.plan(make.candidate()), "lab").record
    account.home.cluster("lab").record.unlink()
    account.clock.sleep(1800)
    account.cloud.orphans = [thing("i-1", token=record.identity.token)]
    seen = look(account)
    assert [cluster.cluster for cluster in seen.clusters_to_delete] == ["lab"]
    assert sweep_error(seen, end(account, seen)) is None
    (entry,) = account.ledger.entries(cluster="lab")
    assert (entry.state, entry.closed_at) == ("closed", account.clock.now())


def test_self_terminated_nodes_are_billed_until_their_end_time(account, make):
    record = account.provisioning.create(make.plan(make.candidate()), "lab").record
    for node in account.cloud.alive:
        account.cloud.alive[node], account.cloud.ends[node] = "terminated", record.lifecycle.expires_at
    account.home.cluster("lab").record.unlink()
    account.clock.sleep(timedelta(days=2).total_seconds())
    account.cloud.orphans = [thing("sg-1", kind="security-group", token=record.identity.token)]
    end(account, look(account))
    (entry,) = account.ledger.entries(cluster="lab")
    assert entry.closed_at == record.lifecycle.expires_at


def test_same_named_cluster_with_another_token_keeps_its_record(account, make):
    account.provisioning.create(make.plan(make.candidate()), "lab")
    account.cloud.orphans = [thing("i-2", token="another")]
    seen = look(account)
    assert end(account, seen).failed == ()
    assert [record.name for record in account.records.clusters()] == ["lab"]
    assert len(account.ledger.entries(state="open")) == 1


def test_failed_region_listing_fails_the_sweep(account):
    def regions():
        raise CloudError("cannot reach ec2.us-east-1")

    account.cloud.regions = regions
    with pytest.raises(CloudError):
        look(account)


def test_sweep_and_status_show_the_same_cost_so_far(account, make):
    account.provisioning.create(make.plan(make.candidate()), "demo")
    record = account.records.cluster("demo")
    account.clock.sleep(4321)
    now = account.clock.now()
    tags = {"cloudgpu:cluster": "demo", "cloudgpu:owner": "ann", "cloudgpu:token": record.identity.token}
    account.cloud.orphans = [
        Resource("instance", instance_id, "us-east-1", tags, since=now - timedelta(minutes=5))
        for instance_id in record.placement.instance_ids
    ]
    (status,) = list_cluster_statuses(account.context.records, now, account.ledger)
    (found,) = [cluster for cluster, _ in look(account).clusters if cluster.cluster == "demo"]
    assert found.spent_usd == status.spent_usd > 0
