"""Ledger rows of unanswered launches are closed at zero only when no node can appear any more."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.aws.ec2.tagging import SearchResult
from cloudgpu.backends.aws.sweep import AccountSweep
from cloudgpu.backends.sweep import SweepRequest, sweep_error
from cloudgpu.errors import CapacityError, CloudError, LedgerError, NoCapacityError
from tests.tagged_resource import Resource

LAUNCH_SHOWS_S = 200
"""How long after the caller was killed a launch may still appear at AWS."""
SENT_AGAIN_S = 600


class Killed(BaseException):
    """Stops a command like SIGKILL: no error handler runs."""


class NoImages:
    def found(self, region, name=""):
        return []


@pytest.fixture
def killed(workspace, make):
    """An AWS cluster whose `up` was killed after its row was opened and before a launch."""
    workspace.cloud.target, workspace.cloud.endpoint = "aws", ""
    workspace.cloud.anybodys = lambda region: [
        resource for resource in workspace.cloud.orphans if resource.region == region
    ]

    def die(stack):
        raise Killed

    workspace.cloud.before_up = die
    with pytest.raises(Killed):
        workspace.provisioning.create(replace(make.plan(make.candidate()), target="aws"), "demo")
    workspace.cloud.searched.clear()
    workspace.began = workspace.clock.now()
    return workspace


def write_journal(workspace):
    workspace.home.cluster("demo").journal("us-east-1").write_text("")


def lose_record(workspace):
    workspace.home.cluster("demo").record.unlink()


def waited_s(workspace):
    return (workspace.clock.now() - workspace.began).total_seconds()


def token(workspace):
    (entry,) = workspace.ledger.entries(cluster="demo")
    return entry.spending.entry_id.partition("/")[0]


def node(workspace, name="i-late"):
    return Resource("instance", name, "us-east-1", {"cloudgpu:cluster": "demo", "cloudgpu:owner": "ann",
                                                 "cloudgpu:token": token(workspace)})  # fmt: skip


def closed_at_zero(workspace):
    (entry,) = workspace.ledger.entries(cluster="demo")
    return entry.state == "closed" and entry.launched_at is None


def sweep(workspace, *regions, **request):
    sweeping = AccountSweep(workspace.context, NoImages(), "us-east-1")
    plan = sweeping.plan(regions, SweepRequest("ann", **request))
    return plan, sweeping.delete_clusters(plan)


def appears_after_the_first_search(workspace, things):
    """Let launched resources appear only after the first search, as tag searches lag."""
    search, searches = workspace.cloud.search, []

    def late(cluster, regions):
        searches.append(workspace.clock.now())
        if workspace.clock.now() > workspace.began:
            workspace.cloud.orphans += things
            things.clear()
        return search(cluster, regions)

    workspace.cloud.search = late


def test_down_closes_row_at_zero_if_journal_has_no_launch(killed):
    write_journal(killed)
    assert killed.teardown.down("demo", "us-east-1").usd == 0
    assert closed_at_zero(killed)
    assert waited_s(killed) == 0


@pytest.mark.parametrize("record", [True, False], ids=["journal lost", "record and journal lost"])
def test_down_without_journal_waits_and_searches_again(killed, record):
    if not record:
        lose_record(killed)
    assert killed.teardown.down("demo", "us-east-1").usd == 0
    assert closed_at_zero(killed)
    assert waited_s(killed) == LAUNCH_SHOWS_S
    assert len([regions for regions in killed.cloud.searched if "us-east-1" in regions]) >= 2


@pytest.mark.parametrize("record", [True, False], ids=["journal lost", "record and journal lost"])
def test_down_keeps_the_schedule_until_a_node_can_no_longer_appear(killed, record):
    """The schedule must end a late node if this process does not, and the node uses the security group."""
    if not record:
        lose_record(killed)
    killed.cloud.orphans = [replace(node(killed), kind=kind) for kind in ("schedule-group", "security-group")]
    release, released = killed.cloud.release, []

    def watched(found, on_wait=None):
        released.append((waited_s(killed), [one.kind for one in found]))
        release(found, on_wait)

    killed.cloud.release = watched
    killed.teardown.down("demo", "us-east-1")
    assert released == [(LAUNCH_SHOWS_S, ["schedule-group", "security-group"])]


@pytest.mark.parametrize("record", [True, False], ids=["journal lost", "record and journal lost"])
def test_down_deletes_and_bills_a_node_that_appears_late(killed, record):
    if not record:
        lose_record(killed)
    appears_after_the_first_search(killed, [node(killed)])
    killed.teardown.down("demo", "us-east-1")
    assert killed.cloud.orphans == []
    (entry,) = killed.ledger.entries(cluster="demo")
    assert (entry.state, entry.instance_ids) == ("closed", ("i-late",))


def test_down_long_after_the_kill_does_not_wait(killed):
    lose_record(killed)
    killed.clock.sleep(SENT_AGAIN_S + LAUNCH_SHOWS_S)
    killed.began = killed.clock.now()
    killed.teardown.down("demo", "us-east-1")
    assert waited_s(killed) == 0
    assert closed_at_zero(killed)


def test_terminated_node_of_unanswered_launch_is_billed(killed):
    """Terminated instances are listed for an hour, which proves that the launch happened."""
    write_journal(killed)
    killed.clock.sleep(3600)
    ended = replace(node(killed), state="terminated")
    killed.cloud.search_each = lambda cluster, regions: SearchResult(
        terminated=(ended,) if "us-east-1" in regions else ()
    )
    assert killed.teardown.down("demo", "us-east-1").usd == Decimal("31.212")
    (entry,) = killed.ledger.entries(cluster="demo")
    assert entry.instance_ids == ("i-late",)


def test_sweep_closes_row_opened_by_killed_command_of_this_home(killed):
    write_journal(killed)
    seen, swept = sweep(killed)
    assert [(cluster.cluster, cluster.billed_in) for cluster in seen.clusters_to_delete] == [("demo", ("us-east-1",))]
    assert sweep_error(seen, swept) is None
    assert closed_at_zero(killed)
    assert killed.records.clusters() == []


def test_sweep_keeps_row_of_another_home_while_launch_may_appear(killed):
    lose_record(killed)
    seen, _ = sweep(killed)
    ((_, what),) = seen.clusters
    assert (what.may_delete, "a launch may still appear until" in what.why) == (False, True)
    killed.clock.sleep(SENT_AGAIN_S + LAUNCH_SHOWS_S)
    seen, swept = sweep(killed)
    assert [cluster.cluster for cluster in swept.ended] == ["demo"]
    assert closed_at_zero(killed)


@pytest.mark.parametrize("silent", ["us-east-1", "global"])
def test_sweep_keeps_row_of_a_region_that_failed(killed, silent):
    write_journal(killed)

    def anybodys(region):
        if region == silent:
            raise CloudError("no answer")
        return []

    killed.cloud.anybodys = anybodys
    seen, _ = sweep(killed)
    assert [cluster.cluster for cluster in seen.clusters_to_delete] == ([] if silent == "us-east-1" else ["demo"])


def test_sweep_of_another_region_excludes_the_cluster(killed):
    write_journal(killed)
    assert sweep(killed, "us-west-2")[0].clusters == ()


def test_sweep_keeps_row_of_another_owner_until_expiry(killed):
    lose_record(killed)
    killed.clock.sleep(SENT_AGAIN_S + LAUNCH_SHOWS_S)
    killed.owner = "bob"
    sweeping = AccountSweep(killed.context, NoImages(), "us-east-1")
    assert sweeping.plan((), SweepRequest("bob")).clusters_to_delete == ()
    killed.clock.sleep(timedelta(hours=2).total_seconds())
    assert [cluster.cluster for cluster in sweeping.plan((), SweepRequest("bob")).clusters_to_delete] == ["demo"]


def test_sweep_deletes_nodes_while_the_ledger_is_unreadable(killed, monkeypatch):
    from cloudgpu.backends.billing.cost_ledger import LenientLedger

    killed.cloud.orphans = [node(killed)]
    lose_record(killed)

    def broken():
        raise LedgerError("the ledger is damaged")

    context = replace(killed.context, ledger=LenientLedger(broken))
    sweeping = AccountSweep(context, NoImages(), "us-east-1")
    sweeping.delete_clusters(sweeping.plan((), SweepRequest("ann")))
    assert killed.cloud.orphans == []


@pytest.mark.parametrize("refused", [False, True], ids=["launched", "refused after a part was launched"])
def test_row_closed_by_another_home_during_launch_is_still_billed(workspace, make, refused):
    def swept(stack):
        workspace.clock.sleep(60)
        (entry,) = workspace.ledger.entries(state="open")
        workspace.ledger.close(entry.spending.entry_id, workspace.clock.now())
        if refused:
            err = CapacityError("no capacity", code="InsufficientInstanceCapacity")
            err.launched = ("i-part",)
            raise err

    workspace.cloud.before_up = swept
    if refused:
        with pytest.raises(NoCapacityError):
            workspace.provisioning.create(make.plan(make.candidate()), "demo")
        assert workspace.ledger.entries(state="open") == ()
    else:
        workspace.provisioning.create(make.plan(make.candidate()), "demo")
        (entry,) = workspace.ledger.entries(state="open")
        assert entry.instance_ids == ("i-us-east-1c-0", "i-us-east-1c-1")
    assert (
        sum(
            row.usd
            for row in workspace.ledger.report(by="cluster", now=workspace.clock.now() + timedelta(minutes=1)).rows
        )
        > 0
    )
