"""`down` on self-managed hosts: a cluster is deleted only when every host has confirmed it."""

import json
from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.errors import StateError, TeardownError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.ledger.store import open_ledger


def test_down_releases_every_host_and_bills_the_time(lab):
    lab.provisioning.create(lab.plan(), "demo")
    lab.clock.sleep(1800)
    deleted = lab.teardown.down("demo", "us-east-1")
    assert deleted.known
    assert deleted.instances == ("red", "blue")
    assert deleted.usd == Decimal(12)
    assert lab.leased() == {"red": 0, "blue": 0}
    assert lab.rows() == {("red", "closed"), ("blue", "closed")}
    assert lab.records.cluster("demo") is None


def test_unreachable_host_is_reported_as_left(lab):
    lab.provisioning.create(lab.plan(), "demo")
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
def test_malformed_agent_response_does_not_count_as_deleted(lab, line, words):
    lab.provisioning.create(lab.plan(), "demo")
    lab.machines["blue"].answers["leave"] = line
    with pytest.raises(TeardownError, match=words):
        lab.teardown.down("demo", "us-east-1")
    assert ("blue", "open") in lab.rows()


def test_leftovers_on_a_host_are_reported(lab):
    lab.provisioning.create(lab.plan(), "demo")
    lab.machines["red"].left = ["mount /data", "container ab12"]
    with pytest.raises(TeardownError) as caught:
        lab.teardown.down("demo", "us-east-1")
    assert caught.value.left == ("red still has mount /data, container ab12",)


def test_down_without_record_queries_hosts_by_name_and_owner(lab):
    lab.provisioning.create(lab.plan(), "demo")
    lab.records.forget_cluster("demo")
    lab.machines["red"].leases["other"] = {"cluster": "demo", "owner": "ben", "devices": []}
    lab.clock.sleep(3600)
    deleted = lab.teardown.down("demo", "us-east-1")
    assert not deleted.known
    assert deleted.orphans == ("red", "blue")
    assert deleted.usd == Decimal(24)
    assert list(lab.machines["red"].leases) == ["other"]
    assert lab.rows() == {("red", "closed"), ("blue", "closed")}


def test_down_without_record_fails_if_a_host_is_unreachable(lab):
    lab.machines["blue"].unreachable = True
    with pytest.raises(TeardownError, match="cannot confirm that cluster demo is deleted: blue could not be queried"):
        lab.teardown.down("demo", "us-east-1")


def test_hosts_file_replaces_a_missing_cluster_inventory(lab):
    lab.provisioning.create(lab.plan(), "demo")
    lab.home.cluster("demo").inventory.unlink()
    assert lab.teardown.down("demo", "us-east-1").instances == ("red", "blue")
    assert lab.leased() == {"red": 0, "blue": 0}


def test_host_missing_from_every_file_is_reported_as_left(lab):
    lab.provisioning.create(lab.plan(), "demo")
    lab.home.cluster("demo").inventory.unlink()
    lab.hosts = lab.hosts[:1]
    with pytest.raises(TeardownError, match="blue could not be queried: it is not in the inventory"):
        lab.teardown.down("demo", "us-east-1")


def test_extend_updates_ledger_record_and_every_lease(lab):
    record = lab.provisioning.create(lab.plan(), "demo").record
    extended = lab.extending.extend("demo", by=timedelta(hours=1))
    assert extended.before == record.lifecycle.expires_at
    assert extended.record.lifecycle.expires_at == record.lifecycle.expires_at + timedelta(hours=1)
    moments = {lease["expires_epoch_s"] for machine in lab.machines.values() for lease in machine.leases.values()}
    assert moments == {int(extended.record.lifecycle.expires_at.timestamp())}
    assert {row.spending.expires_at for row in lab.ledger.entries()} == {extended.record.lifecycle.expires_at}


def test_expired_lease_is_not_extended(lab):
    lab.provisioning.create(lab.plan(), "demo")
    lab.machines["blue"].leases.clear()
    with pytest.raises(StateError, match="blue"):
        lab.extending.extend("demo", by=timedelta(hours=1))


def test_missing_ledger_rows_are_restored_from_the_record(lab, tmp_path):
    lab.provisioning.create(lab.plan(), "demo")
    lab.ledger = open_ledger(f"sqlite:///{tmp_path}/empty.db")
    lab.clock.sleep(1800)
    deleted = lab.teardown.down("demo", "us-east-1")
    assert lab.rows() == {("red", "closed"), ("blue", "closed")}
    assert deleted.usd == Decimal(12)
    restored = "restored missing ledger rows from the cluster's record: red@demo, blue@demo"
    assert any(restored in note for note in lab.notes)
    lab.ledger.engine.dispose()


def test_node_is_running_while_its_lease_exists(lab):
    record = lab.provisioning.create(lab.plan(), "demo").record
    lab.machines["blue"].leases.clear()
    alive = lab.backend.instance_states("", (*record.placement.instance_ids, "x@unknown"))
    assert alive == {"red@demo": "running", "blue@demo": "terminated", "x@unknown": "terminated"}


def test_cluster_inventory_lists_the_leased_hosts(lab):
    record = lab.provisioning.create(lab.plan(), "demo").record
    inventory = Inventory.from_json(json.loads(lab.home.cluster("demo").inventory.read_text()))
    assert [node.instance_id for node in inventory.nodes] == list(record.placement.instance_ids)
