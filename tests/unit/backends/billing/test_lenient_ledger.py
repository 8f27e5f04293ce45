"""A damaged ledger holds no node up, and is not passed over in silence."""

from dataclasses import replace
from decimal import Decimal

import pytest

from cloudgpu.backends.aws.clusters.delete import Teardown
from cloudgpu.backends.billing.lenient_ledger import LenientLedger
from cloudgpu.errors import LedgerError


def damaged():
    raise LedgerError("the ledger is damaged", hint="restore a copy")


@pytest.mark.parametrize("fails_after", [0, 1, 2, 3])
def test_a_cluster_is_ended_and_the_ledger_named(workspace, make, fails_after):
    """Broken from the first question, or from one in the middle."""
    workspace.provisioning.up(make.plan(make.candidate()), "mine")
    asked = []

    def opened():
        asked.append(1)
        return workspace.ledger if len(asked) <= fails_after else damaged()

    context = replace(workspace.context, ledger=LenientLedger(opened))
    told = r"cluster mine is deleted, .* but its ledger rows are not closed: the ledger is damaged"
    with pytest.raises(LedgerError, match=told) as err:
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


def test_a_sound_ledger_is_closed_as_ever(workspace, make):
    workspace.provisioning.up(make.plan(make.candidate()), "mine")
    Teardown(replace(workspace.context, ledger=LenientLedger(lambda: workspace.ledger))).down("mine", "us-east-1")
    assert workspace.ledger.entries(state="open") == ()


def test_nothing_is_bought_without_a_ledger(workspace):
    lenient = LenientLedger(damaged)
    for work in (lambda: lenient.open(None), lambda: lenient.extend("", workspace.clock.now(), workspace.clock.now())):
        with pytest.raises(LedgerError):
            work()
