"""`up` on self-managed hosts: all leases or none, each with a ledger row opened before it is taken."""

import json

import pytest

from cloudgpu.backends.hosts.operations import reuse_cluster
from cloudgpu.errors import (
    CapacityError,
    ConnectError,
    NoCapacityError,
    PlanError,
    RemoteCommandError,
    StateError,
    TeardownError,
    UsageError,
)
from tests.unit.backends.hosts.conftest import GPUS, host


def test_up_leases_and_records_every_host(lab):
    cluster = lab.provisioning.create(lab.plan(), "demo")
    assert cluster.made
    assert cluster.record.state == "up"
    assert cluster.record.placement.instance_ids == ("red@demo", "blue@demo")
    assert lab.leased() == {"red": 1, "blue": 1}
    assert lab.rows() == {("red", "open"), ("blue", "open")}
    assert [node.devices for node in cluster.inventory.nodes] == [(), ()]


def test_cluster_on_part_of_a_host_keeps_its_devices(lab):
    lab.machines["red"].processes = [0]
    cluster = lab.provisioning.create(lab.plan(gpu="V100:4"), "demo")
    assert [node.devices for node in cluster.inventory.nodes] == [(1, 2, 3, 4), (0, 1, 2, 3)]


def test_cluster_is_reused_while_its_leases_last(lab):
    plan = lab.plan()
    lab.provisioning.create(plan, "demo")
    assert not lab.provisioning.create(plan, "demo").made
    lab.machines["blue"].leases.clear()
    with pytest.raises(StateError, match="blue"):
        reuse_cluster(lab.context, "demo", plan)


def test_busy_host_releases_the_lease_on_the_other_host(lab):
    lab.machines["blue"].processes = list(range(GPUS))
    with pytest.raises(CapacityError, match=f"0 of {GPUS} GPUs are free"):
        lab.provisioning.create(lab.plan(), "demo")
    assert lab.leased() == {"red": 0, "blue": 0}
    assert lab.records.cluster("demo") is None
    assert {state for _, state in lab.rows()} == {"closed"}


def test_next_set_of_hosts_is_tried(make_lab):
    lab = make_lab(host("a"), host("b"), host("c"), host("d"))
    lab.machines["b"].unreachable = True
    cluster = lab.provisioning.create(lab.plan(), "demo")
    assert cluster.record.placement.instance_ids == ("c@demo", "d@demo")
    assert cluster.tried == ("a, b: b is unreachable",)
    assert lab.leased() == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_no_capacity_error_lists_the_attempted_host_sets(make_lab):
    lab = make_lab(host("a"), host("b"), host("c"), host("d"))
    lab.machines["b"].unreachable = True
    lab.machines["c"].processes = [0]
    with pytest.raises(NoCapacityError) as caught:
        lab.provisioning.create(lab.plan(), "demo")
    assert caught.value.tried == ("a, b: b is unreachable", f"c, d: node 0 (c@demo): 7 of {GPUS} GPUs are free")
    assert set(lab.leased().values()) == {0}


def test_unreachable_host_without_alternative_is_the_error(lab):
    lab.machines["red"].unreachable = True
    with pytest.raises(ConnectError, match="red is unreachable"):
        lab.provisioning.create(lab.plan(), "demo")
    assert lab.rows() == {("red", "closed"), ("blue", "closed")}
    assert lab.records.cluster("demo") is None


def test_capacity_is_retried_until_the_limit(lab):
    lab.machines["blue"].processes = [0]
    began = lab.clock.monotonic()
    with pytest.raises(CapacityError):
        lab.provisioning.create(lab.plan(), "demo", retry_s=40)
    assert lab.clock.monotonic() - began >= 40
    assert sum("looking again" in note or "retrying" in note for note in lab.notes) == 3


@pytest.mark.parametrize(("off_s", "words"), [(1200, "20 minutes ahead of"), (-1200, "20 minutes behind")])
def test_wrong_host_clock_is_rejected_before_leasing(lab, off_s, words):
    lab.machines["blue"].clock_off_s = off_s
    with pytest.raises(RemoteCommandError, match=f"blue.*{words}"):
        lab.provisioning.create(lab.plan(), "demo")
    assert [verb for verb, request in lab.machines["red"].sent if request["action"] != "show"] == []
    assert lab.rows() == {("red", "closed"), ("blue", "closed")}


def test_invalid_leased_devices_are_an_error(lab):
    lab.machines["red"].answers["take"] = json.dumps({"devices": [-1], "of": GPUS}) + "\n"
    with pytest.raises(RemoteCommandError, match="red"):
        lab.provisioning.create(lab.plan(), "demo")


def test_leases_that_cannot_be_released_are_reported(lab):
    lab.machines["red"].left = ["process 4711"]
    lab.machines["blue"].processes = [0]
    with pytest.raises((TeardownError, CapacityError)) as caught:
        lab.provisioning.create(lab.plan(), "demo")
    assert "red still has process 4711" in f"{caught.value.message} {getattr(caught.value, 'left', '')}"
    assert lab.records.cluster("demo").placement.instance_ids == ("red@demo", "blue@demo")


def test_plan_with_errors_is_rejected(lab):
    with pytest.raises(PlanError, match="demo"):
        lab.provisioning.create(lab.plan(pool="none"), "demo")
    assert lab.rows() == set()


def test_leases_of_a_killed_up_are_released_first(lab, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("cloudgpu.backends.hosts.billing.start_billing", die)
        with pytest.raises(Killed):
            lab.provisioning.create(lab.plan(), "demo")
    assert lab.leased() == {"red": 1, "blue": 1}
    tokens = set(lab.machines["red"].leases)
    assert lab.provisioning.create(lab.plan(), "demo").made
    assert lab.leased() == {"red": 1, "blue": 1}
    assert set(lab.machines["red"].leases) != tokens


def test_two_names_of_one_machine_are_rejected_before_leasing(lab):
    plan = lab.plan()  # made without asking the hosts
    lab.machines["blue"].system = "red"
    with pytest.raises(UsageError, match="red and blue in the inventory are the same machine") as caught:
        lab.provisioning.create(plan, "demo")
    assert "remove blue or red" in caught.value.hint
    assert lab.leased() == {"red": 0, "blue": 0}
    assert not any(request["action"] == "take" for _, request in lab.machines["red"].sent)
    assert lab.records.cluster("demo") is None


def test_every_host_has_a_directory_of_its_own(lab):
    """Hosts may share a home directory, and the state of two agents must not meet there."""
    cluster = lab.provisioning.create(lab.plan(), "demo")
    token = cluster.record.identity.token[:8]
    assert [node.base.rpartition("/")[2] for node in cluster.inventory.nodes] == [
        f"demo-{token}-red",
        f"demo-{token}-blue",
    ]
