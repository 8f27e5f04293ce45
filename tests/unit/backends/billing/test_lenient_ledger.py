"""A damaged ledger does not block a deletion, and is reported."""

from dataclasses import replace
from decimal import Decimal

import pytest

from cloudgpu.backends.aws.clusters.delete import Teardown
from cloudgpu.backends.billing.cost_ledger import LenientLedger
from cloudgpu.errors import CloudError, LedgerError, TeardownError


def damaged():
    raise LedgerError("the ledger is damaged", hint="restore a copy")


@pytest.mark.parametrize("fails_after", [0, 1, 2, 3])
def test_down_deletes_cluster_and_reports_the_damaged_ledger(workspace, make, fails_after):
    """The ledger fails from the first access or from a later one."""
    workspace.provisioning.create(make.plan(make.candidate()), "mine")
    calls = []

    def opened():
        calls.append(1)
        return workspace.ledger if len(calls) <= fails_after else damaged()

    context = replace(workspace.context, ledger=LenientLedger(opened))
    message = r"cluster mine is deleted, .* but its ledger rows are not closed: the ledger is damaged"
    with pytest.raises(LedgerError, match=message) as err:
        Teardown(context).down("mine", "us-east-1")
    assert err.value.hint == "restore a copy; then run `cloudgpu down mine` again to record the deletion"
    assert set(workspace.cloud.alive.values()) == {"terminated"}
    # The record stays until the ledger knows what the cluster cost.
    (record,) = workspace.records.clusters()
    assert record.state == "ending"
    workspace.clock.sleep(7200)
    ended = Teardown(replace(workspace.context, ledger=LenientLedger(lambda: workspace.ledger))).down(
        "mine", "us-east-1"
    )
    assert (ended.usd, ended.estimated) == (Decimal("62.424") / 60, False)
    assert workspace.ledger.entries(state="open") == ()
    assert workspace.records.clusters() == []


def test_failed_launch_is_cleaned_up_although_the_ledger_failed_meanwhile(workspace, make, monkeypatch):
    """`up` needs the ledger before it launches, and must not need it to terminate the nodes."""

    def launched(stack):
        (row,) = workspace.ledger.entries(cluster="mine")
        tags = {"cloudgpu:owner": "ann", "cloudgpu:token": row.spending.entry_id.partition("/")[0]}
        workspace.cloud.orphans = [make.thing("instance", "i-1", "us-east-1", tags)]
        for name in ("entries", "close", "launched", "part_ended"):
            monkeypatch.setattr(type(workspace.ledger), name, lambda *_, **__: damaged())

    workspace.cloud.before_up = launched
    workspace.cloud.refusals = {"us-east-1c": CloudError("the launch failed")}
    with pytest.raises(TeardownError) as caught:
        workspace.provisioning.create(make.plan(make.candidate()), "mine")
    assert workspace.cloud.orphans == []
    assert caught.value.message == (
        "the launch failed; and the cleanup failed: cluster mine is deleted, verified by tag search, but its ledger "
        "rows are not closed: the ledger is damaged"
    )


def test_down_closes_rows_of_an_intact_ledger(workspace, make):
    workspace.provisioning.create(make.plan(make.candidate()), "mine")
    Teardown(replace(workspace.context, ledger=LenientLedger(lambda: workspace.ledger))).down("mine", "us-east-1")
    assert workspace.ledger.entries(state="open") == ()


def test_launch_requires_a_usable_ledger(workspace):
    lenient = LenientLedger(damaged)
    for work in (lambda: lenient.open(None), lambda: lenient.extend("", workspace.clock.now(), workspace.clock.now())):
        with pytest.raises(LedgerError):
            work()


def test_down_without_record_and_ledger_is_incomplete(workspace, make):
    """Regions that only the ledger knows were not searched."""
    workspace.cloud.orphans = [make.thing("instance", "i-1", "us-east-1", {"cloudgpu:owner": "ann"})]
    context = replace(workspace.context, ledger=LenientLedger(damaged))
    with pytest.raises(TeardownError) as caught:
        Teardown(context).down("mine", "us-east-1")
    assert workspace.cloud.orphans == []
    assert caught.value.message == "cluster mine is confirmed deleted only in us-east-1"
    assert "the ledger is damaged" in caught.value.left[0]
    assert caught.value.hint.startswith("restore a copy; or search every region: `cloudgpu sweep`")


def test_down_without_a_record_does_not_search_regions_of_earlier_clusters(workspace, make):
    """Such a region may have been disabled since."""
    earlier = make.candidate("eu-west-1a")
    workspace.provisioning.create(make.plan(earlier), "mine")
    workspace.teardown.down("mine", "us-east-1")
    workspace.provisioning.create(make.plan(make.candidate("us-west-2a")), "mine")
    workspace.home.cluster("mine").record.unlink()
    workspace.home.cluster("mine").journal("us-west-2").unlink(missing_ok=True)
    workspace.cloud.searched.clear()
    workspace.teardown.down("mine", "us-east-1")
    assert {region for (region,) in workspace.cloud.searched} == {"us-east-1", "us-west-2", "global"}
