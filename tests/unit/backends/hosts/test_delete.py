"""`down` on self-managed hosts: a cluster is deleted when every host has said so, and not before."""

import json
from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.errors import StateError, TeardownError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.ledger.store import open_ledger


def test_down_gives_every_host_back_and_bills_the_time(lab):
    lab.provisioning.up(lab.plan(), "demo")
    lab.clock.sleep(1800)
    deleted = lab.teardown.down("demo", "us-east-1")
    assert deleted.known
    assert deleted.instances == ("red", "blue")
    assert deleted.usd == Decimal(12)
    assert lab.leased() == {"red": 0, "blue": 0}
    assert lab.rows() == {("red", "closed"), ("blue", "closed")}
    assert lab.records.cluster("demo") is None


def test_a_host_that_cannot_be_asked_is_left(lab):
    lab.provisioning.up(lab.plan(), "demo")
    lab.machines["blue"].unreachable = True
    with pytest.raises(TeardownError) as caught:
        lab.teardown.down("demo", "us-east-1")
    assert caught.value.left == ("blue could not be queried: blue is unreachable",)
    assert lab.rows() == {("red", "closed"), ("blue", "open")}
    assert lab.records.cluster("demo").state == "ending"
    lab.machines["blue"].unreachable = False
    assert lab.teardown.down("demo", "us-east-1").instances == ("red", "blue")
    assert lab.rows() == {("red", "closed"), ("blue", "closed")}


@pytest.mark.parametrize(
    ("line", "words"),
    [('{"clusters": 1}\n', "malformed"), ("", "exited without a response"), ('{"error": "EIO"}\n', "EIO")],
)
def test_an_odd_answer_is_never_taken_for_gone(lab, line, words):
    lab.provisioning.up(lab.plan(), "demo")
    lab.machines["blue"].answers["leave"] = line
    with pytest.raises(TeardownError, match=words):
        lab.teardown.down("demo", "us-east-1")
    assert ("blue", "open") in lab.rows()


def test_what_is_left_on_a_host_is_named(lab):
    lab.provisioning.up(lab.plan(), "demo")
    lab.machines["red"].left = ["mount /data", "container ab12"]
    with pytest.raises(TeardownError) as caught:
        lab.teardown.down("demo", "us-east-1")
    assert caught.value.left == ("red still has mount /data, container ab12",)


def test_without_a_record_every_host_is_asked_by_name_and_owner(lab):
    lab.provisioning.up(lab.plan(), "demo")
    lab.records.forget_cluster("demo")
    lab.machines["red"].leases["other"] = {"cluster": "demo", "owner": "ben", "devices": []}
    lab.clock.sleep(3600)
    deleted = lab.teardown.down("demo", "us-east-1")
    assert not deleted.known
    assert deleted.orphans == ("red", "blue")
    assert deleted.usd == Decimal(24)
    assert list(lab.machines["red"].leases) == ["other"]
    assert lab.rows() == {("red", "closed"), ("blue", "closed")}


def test_without_a_record_and_with_a_silent_host_the_answer_is_unknown(lab):
    lab.machines["blue"].unreachable = True
    with pytest.raises(TeardownError, match="cannot confirm that cluster demo is deleted: blue could not be queried"):
        lab.teardown.down("demo", "us-east-1")


def test_a_cluster_without_an_inventory_file_is_found_by_the_hosts_file(lab):
    lab.provisioning.up(lab.plan(), "demo")
    lab.home.cluster("demo").inventory.unlink()
    assert lab.teardown.down("demo", "us-east-1").instances == ("red", "blue")
    assert lab.leased() == {"red": 0, "blue": 0}


def test_a_host_that_no_file_names_cannot_be_asked(lab):
    lab.provisioning.up(lab.plan(), "demo")
    lab.home.cluster("demo").inventory.unlink()
    lab.hosts = lab.hosts[:1]
    with pytest.raises(TeardownError, match="blue could not be queried: it is not in the inventory"):
        lab.teardown.down("demo", "us-east-1")


def test_extending_reaches_ledger_record_and_every_lease(lab):
    record = lab.provisioning.up(lab.plan(), "demo").record
    extended = lab.extending.extend("demo", by=timedelta(hours=1))
    assert extended.before == record.expires_at
    assert extended.record.expires_at == record.expires_at + timedelta(hours=1)
    moments = {lease["expires_epoch_s"] for one in lab.machines.values() for lease in one.leases.values()}
    assert moments == {int(extended.record.expires_at.timestamp())}
    assert {row.spending.expires_at for row in lab.ledger.entries()} == {extended.record.expires_at}


def test_a_lease_that_lapsed_is_not_extended(lab):
    lab.provisioning.up(lab.plan(), "demo")
    lab.machines["blue"].leases.clear()
    with pytest.raises(StateError, match="blue"):
        lab.extending.extend("demo", by=timedelta(hours=1))


def test_rows_that_the_ledger_lost_are_written_again(lab, tmp_path):
    lab.provisioning.up(lab.plan(), "demo")
    lab.ledger = open_ledger(f"sqlite:///{tmp_path}/empty.db")
    lab.clock.sleep(1800)
    deleted = lab.teardown.down("demo", "us-east-1")
    assert lab.rows() == {("red", "closed"), ("blue", "closed")}
    assert deleted.usd == Decimal(12)
    restored = "restored missing ledger rows from the cluster's record: red@demo, blue@demo"
    assert any(restored in note for note in lab.notes)
    lab.ledger.dispose()


def test_nodes_alive_are_those_whose_lease_lasts(lab):
    record = lab.provisioning.up(lab.plan(), "demo").record
    lab.machines["blue"].leases.clear()
    alive = lab.backend.instance_states("", (*record.instance_ids, "x@unknown"))
    assert alive == {"red@demo": "running", "blue@demo": "terminated", "x@unknown": "terminated"}


def test_the_inventory_of_a_cluster_holds_what_was_leased(lab):
    record = lab.provisioning.up(lab.plan(), "demo").record
    inventory = Inventory.from_json(json.loads(lab.home.cluster("demo").inventory.read_text()))
    assert [node.instance_id for node in inventory.nodes] == list(record.instance_ids)
