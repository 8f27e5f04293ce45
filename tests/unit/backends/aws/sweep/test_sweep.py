"""`sweep` asks everywhere, takes no silence for an answer, and ends only what may go."""

from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from cloudgpu.backends.aws.sweep.sweep import AccountSweep
from cloudgpu.backends.sweep.plan import SweepRequest, sweep_error
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import AuthError, CloudError, UsageError

REGIONS = ("eu-west-1", "us-east-1", "us-west-2")
PAST = "2026-11-20T00:00:00Z"
LATER = "2026-11-22T00:00:00Z"


@dataclass(frozen=True)
class Thing:
    kind: str
    id: str
    region: str
    tags: dict = field(default_factory=dict, hash=False)
    state: str = "running"
    since: object = None
    instance_type: str = "p3dn.24xlarge"
    market: str = "on-demand"
    volume_type: str = ""
    size_gib: int | None = None


@pytest.fixture
def account(workspace):
    """An account of three regions; things lie in `workspace.cloud.strays`, and regions can be silent."""
    cloud = workspace.cloud
    cloud.silent = {}
    cloud.asked = []

    def anybodys(region):
        cloud.asked.append(region)
        if region in cloud.silent:
            raise cloud.silent[region]
        return [one for one in (*cloud.orphans, *cloud.stubborn) if one.region == region]

    cloud.regions = lambda: REGIONS
    cloud.anybodys = anybodys
    return workspace


def thing(name, *, owner="ann", expires=LATER, region="us-east-1", kind="instance", cluster="lab", token="t"):
    tags = {"cloudgpu:cluster": cluster, "cloudgpu:owner": owner, "cloudgpu:token": token}
    return Thing(kind, name, region, {**tags, "cloudgpu:expires-at": expires})


class NoImages:
    def found(self, region, name=""):
        return []


def look(workspace, *regions, **request):
    return AccountSweep(workspace.context, NoImages(), "us-east-1").plan(regions, SweepRequest("ann", **request))


def end(workspace, seen):
    return AccountSweep(workspace.context, NoImages(), "us-east-1").delete_clusters(seen)


def test_every_enabled_region_and_iam_are_asked_once(account):
    assert look(account).regions == REGIONS
    assert sorted(account.cloud.asked) == sorted([*REGIONS, "global"])


def test_of_named_regions_only_those_are_asked_and_iam_is_left_alone(account):
    assert look(account, "us-west-2").regions == ("us-west-2",)
    assert account.cloud.asked == ["us-west-2"]
    with pytest.raises(UsageError, match="not enabled in the account: nowhere-1"):
        look(account, "nowhere-1")


def test_a_region_that_does_not_answer_is_unknown_and_never_gone(account):
    account.cloud.orphans = [thing("i-1"), thing("role-1", kind="role", region="global")]
    account.cloud.silent = {"us-west-2": CloudError("cannot reach ec2.us-west-2")}
    seen = look(account)
    assert seen.regions == ("eu-west-1", "us-east-1")
    assert seen.unknown == (
        ("us-west-2", "cannot reach ec2.us-west-2"),
        ("global", "left unchanged while a region cannot be searched"),
    )
    swept = end(account, seen)
    # Its role may be in use where nobody answered.
    assert [one.id for one in account.cloud.orphans] == ["role-1"]
    err = sweep_error(seen, swept)
    assert err.exit_code == 6
    assert err.left[0] == "us-west-2: unknown: cannot reach ec2.us-west-2"


def test_all_is_well_when_everything_answered_and_ended(account):
    account.cloud.orphans = [thing("i-1"), thing("vol-1", kind="volume")]
    seen = look(account)
    swept = end(account, seen)
    assert [one.cluster for one in swept.ended] == ["lab"]
    assert account.cloud.orphans == []
    assert sweep_error(seen, swept) is None


def test_what_is_another_persons_stays_until_it_is_asked_for(account):
    account.cloud.orphans = [thing("i-1", owner="bob", cluster="his")]
    assert look(account).clusters_to_delete == ()
    seen = look(account, owners=frozenset({"bob"}))
    end(account, seen)
    assert account.cloud.orphans == []


def test_with_owners_nobody_else_is_shown(account):
    account.cloud.orphans = [thing("i-1"), thing("i-2", owner="bob", cluster="his", expires=PAST)]
    assert [one.cluster for one, _ in look(account, owners=frozenset({"bob"})).clusters] == ["his"]


def test_a_search_that_is_not_empty_is_told_and_the_others_still_end(account):
    account.cloud.stubborn = [thing("vol-1", kind="volume", cluster="bad", token="b")]
    account.cloud.orphans = [thing("i-1")]
    seen = look(account)
    swept = end(account, seen)
    assert [one.cluster for one in swept.ended] == ["lab"]
    err = sweep_error(seen, swept)
    assert err.message == "1 cluster is not confirmed deleted"
    assert err.left == ("bad: volume vol-1 in us-east-1",)


def test_trouble_with_one_is_no_end_of_the_others(account):
    account.cloud.orphans = [thing("i-1"), thing("i-2", cluster="bad", token="b")]
    release = account.cloud.release

    def refuse(found):
        if found[0].id == "i-2":
            raise AuthError("the token has expired")
        release(found)

    account.cloud.release = refuse
    seen = look(account)
    swept = end(account, seen)
    assert [one.cluster for one in swept.ended] == ["lab"]
    assert sweep_error(seen, swept).left == ("bad: the token has expired",)


def test_a_cluster_of_this_home_ends_with_its_journal_its_bill_and_its_record(account, make):
    record = account.provisioning.up(make.plan(make.candidate()), "lab").record
    account.cloud.orphans = [thing("i-1", token=record.token, expires=f"{record.expires_at:%Y-%m-%dT%H:%M:%SZ}")]
    assert look(account).clusters_to_delete == ()
    seen = look(account, all_mine=True)
    assert sweep_error(seen, end(account, seen)) is None
    assert ("destroy", "us-east-1", "") in account.cloud.calls
    assert account.records.clusters() == []
    assert account.ledger.entries(state="open") == ()


def test_one_that_a_command_is_at_is_left_to_it(account, make):
    record = account.provisioning.up(make.plan(make.candidate()), "lab").record
    account.cloud.orphans = [thing("i-1", token=record.token)]
    with ClusterLease(account.home.cluster("lab").root / "lease", account.clock, "ann").hold():
        ((_, what),) = look(account, all_mine=True).clusters
    assert not what.may_delete


def test_a_lost_home_is_no_loss_the_bill_is_closed_by_the_token(account, make):
    record = account.provisioning.up(make.plan(make.candidate()), "lab").record
    account.home.cluster("lab").record.unlink()
    account.clock.sleep(1800)
    account.cloud.orphans = [thing("i-1", token=record.token)]
    seen = look(account)
    assert [one.cluster for one in seen.clusters_to_delete] == ["lab"]
    assert sweep_error(seen, end(account, seen)) is None
    (entry,) = account.ledger.entries(cluster="lab")
    assert (entry.state, entry.closed_at) == ("closed", account.clock.now())


def test_a_bill_of_nodes_that_ended_themselves_stops_when_the_cloud_says_they_did(account, make):
    record = account.provisioning.up(make.plan(make.candidate()), "lab").record
    for node in account.cloud.alive:
        account.cloud.alive[node], account.cloud.ends[node] = "terminated", record.expires_at
    account.home.cluster("lab").record.unlink()
    account.clock.sleep(timedelta(days=2).total_seconds())
    account.cloud.orphans = [thing("sg-1", kind="security-group", token=record.token)]
    end(account, look(account))
    (entry,) = account.ledger.entries(cluster="lab")
    assert entry.closed_at == record.expires_at


def test_a_namesake_with_another_token_is_not_this_homes_cluster(account, make):
    account.provisioning.up(make.plan(make.candidate()), "lab")
    account.cloud.orphans = [thing("i-2", token="another")]
    seen = look(account)
    assert end(account, seen).failed == ()
    assert [record.name for record in account.records.clusters()] == ["lab"]
    assert len(account.ledger.entries(state="open")) == 1


def test_nobody_can_tell_the_regions(account):
    def regions():
        raise CloudError("cannot reach ec2.us-east-1")

    account.cloud.regions = regions
    with pytest.raises(CloudError):
        look(account)
