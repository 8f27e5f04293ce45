"""A damaged ledger holds no node up, and is not passed over in silence."""

from dataclasses import replace
from decimal import Decimal

import pytest

from cloudgpu.app.lenient_ledger import LenientLedger
from cloudgpu.app.teardown import Teardown
from cloudgpu.errors import LedgerError


def damaged():
    raise LedgerError("the ledger is damaged", hint="restore a copy")


@pytest.mark.parametrize("fails_after", [0, 1, 2, 3])
def test_a_cluster_is_ended_and_the_ledger_named(bench, make, fails_after):
    """Broken from the first question, or from one in the middle."""
    bench.provisioning.up(make.plan(make.candidate()), "mine")
    asked = []

    def opened():
        asked.append(1)
        return bench.ledger if len(asked) <= fails_after else damaged()

    desk = replace(bench.desk, ledger=LenientLedger(opened))
    told = r"cluster mine is gone, .* but its books are not closed: the ledger is damaged"
    with pytest.raises(LedgerError, match=told) as err:
        Teardown(desk).down("mine", "us-east-1")
    assert err.value.hint == "restore a copy; then `cloudgpu down mine` again, which records it"
    assert set(bench.cloud.alive.values()) == {"terminated"}
    # The record stays until the ledger knows what the cluster cost.
    (record,) = bench.records.clusters()
    assert record.state == "ending"
    bench.clock.sleep(7200)
    ended = Teardown(replace(bench.desk, ledger=LenientLedger(lambda: bench.ledger))).down("mine", "us-east-1")
    assert (ended.usd, ended.estimated) == (Decimal("62.424") / 60, False)
    assert bench.ledger.entries(state="open") == ()
    assert bench.records.clusters() == []


def test_a_sound_ledger_is_closed_as_ever(bench, make):
    bench.provisioning.up(make.plan(make.candidate()), "mine")
    Teardown(replace(bench.desk, ledger=LenientLedger(lambda: bench.ledger))).down("mine", "us-east-1")
    assert bench.ledger.entries(state="open") == ()


def test_nothing_is_bought_without_a_ledger(bench):
    lenient = LenientLedger(damaged)
    for work in (lambda: lenient.open(None), lambda: lenient.extend("", bench.clock.now(), bench.clock.now())):
        with pytest.raises(LedgerError):
            work()
