"""Which hosts of one's own could be the gang: the sets in the order in which they are tried. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from cloudgpu.catalog.gpu_spec import GpuSpec, parse_gpu_spec, spec_name
from cloudgpu.hosts.host import OwnHost
from cloudgpu.plan.candidate import Candidate
from cloudgpu.plan.candidates import Field
from cloudgpu.plan.costs import CostItem
from cloudgpu.plan.question import Question

NEVER = date.min
"""The day on which the rate of a host was read: nobody reads it anywhere but in the inventory."""


@dataclass(frozen=True)
class HostSet(Candidate):
    """So many hosts of one kind, some or all GPUs of each. It has no region, zone, market or image of its own."""

    hosts: tuple[str, ...] = ()
    pool: str = ""
    rates: tuple[Decimal | None, ...] = ()
    """For each host the share of its rate that belongs to these GPUs, USD an hour; None where nobody gave one."""
    of_gpus: int = 0
    """GPUs that each of these hosts has in all."""

    @property
    def label(self) -> str:
        """`red, blue`."""
        return ", ".join(self.hosts)

    def costs(self, nodes: int) -> tuple[CostItem, ...]:
        """What the hosts with a rate come to, and a line for those without."""
        del nodes
        known = [rate for rate in self.rates if rate is not None]
        what = f"{'host' if len(known) == 1 else 'hosts'} {self.instance_type}"
        item = CostItem("nodes", len(known), what, sum(known, Decimal(0)), None, "the inventory")
        return (*([item] if known else []), *self.beside)

    def as_json(self) -> dict[str, Any]:
        """Its documented form; money as text, null for a rate that nobody gave."""
        return {
            "hosts": list(self.hosts),
            "pool": self.pool or None,
            "gpu": self.gpu,
            "gpus_per_node": self.gpus_per_node,
            "gpus_on_host": self.of_gpus,
            "gpu_memory_gib": str(self.gpu_memory_gib) if self.gpu_memory_gib else None,
            "hourly_usd": [None if rate is None else format(rate, "f") for rate in self.rates],
        }


def weigh(question: Question) -> Field:
    """The sets that are left, in order. Why there is none, the checks say."""
    found: list[HostSet] = []
    for spec in question.specs:
        for group in groups(question, parse_gpu_spec(spec)):
            found += _sets(question, group, parse_gpu_spec(spec))
    return Field(tuple(_in_order(question, list(dict.fromkeys(found)))), ())


def matching(question: Question, spec: GpuSpec) -> list[OwnHost]:
    """Return every host that matches a spec and is in the recipe's pool, whether or not it is in use."""
    if question.hosts is None:
        return []
    pool = question.recipe.resources.pool
    return [one for one in question.hosts.file.hosts if _fits(one, spec, question) and pool in (None, one.pool)]


def groups(question: Question, spec: GpuSpec) -> list[list[OwnHost]]:
    """The hosts that match, apart by pool and kind: a gang never mixes them."""
    apart: dict[tuple[object, ...], list[OwnHost]] = {}
    for host in matching(question, spec):
        apart.setdefault((host.pool, *host.kind), []).append(host)
    return list(apart.values())


def _fits(host: OwnHost, spec: GpuSpec, question: Question) -> bool:
    least = question.recipe.resources.gpu_memory
    size_gb = spec.size_gb
    memory = host.gpu_memory_gib
    if spec.model not in (host.gpu, spec_name(host.gpu)) or spec.count is None or not 1 <= spec.count <= host.gpus:
        return False
    if size_gb is not None and memory is not None and size_gb not in _sold(question, host, memory):
        return False
    return least is None or memory is None or memory >= int(least)


def _sold(question: Question, host: OwnHost, gib: Decimal) -> set[int]:
    """The sizes in GB that a memory is called by."""
    sold = {one.sold_as_gb for one in question.catalog.gpus[host.gpu].memories if one.gib == gib}
    return sold | {round(gib)}


def _sets(question: Question, group: Sequence[OwnHost], spec: GpuSpec) -> Iterator[HostSet]:
    """As many disjoint sets as there are hosts for, whole hosts that nobody uses first; then one of what is left."""
    view, nodes, count = question.hosts, question.recipe.resources.nodes, spec.count or 0
    usable = [one for one in group if view is not None and view.usable(one, count)]
    starts = list(range(0, len(usable) - nodes + 1, nodes))
    if usable and starts and starts[-1] != len(usable) - nodes:
        starts.append(len(usable) - nodes)
    for start in starts:
        yield _set(question, usable[start : start + nodes], count)
    by_name = {one.name: one for one in group}
    for names, gpus in () if view is None else view.running:
        # What a cluster of the caller's own holds is taken, and there for a run on that very cluster.
        if gpus == count and len(names) == nodes and by_name.keys() >= set(names):
            yield _set(question, [by_name[name] for name in names], count)


def _set(question: Question, hosts: Sequence[OwnHost], count: int) -> HostSet:
    first = hosts[0]
    rates = tuple(_share(one, count) for one in hosts)
    known = [rate for rate in rates if rate is not None]
    memory = first.gpu_memory_gib or Decimal(0)
    return HostSet(
        instance_type=f"{spec_name(first.gpu)}:{count}",
        region="",
        zone=", ".join(one.name for one in hosts),
        market="on-demand",
        node_hourly_usd=sum(known, Decimal(0)) / len(hosts),
        priced_on=question.today,
        gpu=first.gpu,
        gpus_per_node=count,
        gpu_memory_gib=memory,
        efa_interfaces=0,
        image="",
        source="the inventory",
        beside=_unrated([one.name for one in hosts if one.rate_usd is None]),
        hosts=tuple(one.name for one in hosts),
        pool=first.pool,
        rates=rates,
        of_gpus=first.gpus,
    )


def _unrated(names: Sequence[str]) -> tuple[CostItem, ...]:
    """A line of the bill for hosts that nobody gave a rate for."""
    what = f"{'host' if len(names) == 1 else 'hosts'} without a rate: {', '.join(names)}"
    return (CostItem("nodes", len(names), what, None, None, ""),) if names else ()


def _share(host: OwnHost, count: int) -> Decimal | None:
    """Of a host's rate, what so many of its GPUs stand for, to the nano-dollar."""
    if host.rate_usd is None:
        return None
    return (host.rate_usd * count / host.gpus).quantize(Decimal("1e-9")).normalize()


def _in_order(question: Question, sets: list[HostSet]) -> list[HostSet]:
    """In the order of wishes and of the file, or the cheapest first; what has no rate comes last then."""
    if question.recipe.resources.prefer != "price":
        return sets
    return sorted(sets, key=lambda one: (None in one.rates, one.node_hourly_usd))
