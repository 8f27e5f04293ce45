"""Which sets of hosts are tried, in which order, and what they cost."""

from decimal import Decimal

from cloudgpu.hosts.host import HostSeen
from cloudgpu.plan.host_sets import HostSet
from tests.unit.plan.checks.table_hosts import FREE, host, lab
from tests.unit.plan.checks.worlds import PlanInputs


def sets(world: PlanInputs) -> list[tuple[str, ...]]:
    return [one.hosts for one in world.plan().candidates if isinstance(one, HostSet)]


def test_host_sets_are_disjoint_and_in_file_order():
    five = [host(name) for name in ("a", "b", "c", "d", "e")]
    assert sets(lab(*five)) == [("a", "b"), ("c", "d"), ("d", "e")]
    busy = {one.name: FREE for one in five} | {"b": HostSeen(gpus=8, busy=frozenset({1}))}
    assert sets(lab(*five, seen=busy)) == [("a", "c"), ("d", "e")]


def test_host_set_never_mixes_gpu_kinds_or_pools():
    hosts = [
        host("a"),
        host("b", gpus=4),
        host("c", pool="other"),
        host("d"),
        host("e", gpus=4),
        host("f", pool="other"),
    ]
    assert sets(lab(*hosts, resources={"gpu": "V100:4"})) == [("a", "d"), ("b", "e"), ("c", "f")]
    assert sets(lab(*hosts, resources={"gpu": "V100:8", "pool": "other"})) == [("c", "f")]


def test_gpu_memory_filters_hosts_only_when_requested():
    hosts = [host("a"), host("b", gpu_memory_gib=Decimal(32)), host("c", gpu_memory_gib=None)]
    assert sets(lab(*hosts, resources={"gpu": "V100-32GB:8", "nodes": 1})) == [("b",), ("c",)]
    assert sets(lab(*hosts, resources={"gpu": "V100:8", "nodes": 1, "gpu_memory": "24GiB"})) == [("b",), ("c",)]


def test_partial_host_costs_its_share_and_missing_rate_is_unknown():
    world = lab(host("a", rate_usd=Decimal("12.50")), host("b"), resources={"gpu": "V100:3"})
    plan = world.plan()
    assert plan.candidates[0].as_json()["hourly_usd"] == ["4.6875", None]
    assert [(item.label, item.usd) for item in plan.costs] == [
        ("1 host V100:3", Decimal("4.6875")),
        ("1 host without a rate: b", None),
    ]
    assert plan.worst_case_usd is not None


def test_cheapest_hosts_come_first_with_prefer_price():
    rates = {"a": Decimal(9), "b": None, "c": Decimal(3)}
    hosts = [host(name, rate_usd=rate) for name, rate in rates.items()]
    one = {"nodes": 1, "prefer": "price"}
    assert sets(lab(*hosts, resources=one)) == [("c",), ("a",), ("b",)]
