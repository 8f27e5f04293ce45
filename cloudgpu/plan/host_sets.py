"""Sets of self-managed hosts that can run a recipe, in the order in which they are tried."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cloudgpu.catalog.gpu_spec import GpuSpec, parse_gpu_spec, spec_name
from cloudgpu.hosts.host import OwnHost
from cloudgpu.plan.candidate import Candidate
from cloudgpu.plan.candidate_list import CandidateList
from cloudgpu.plan.costs import CostItem
from cloudgpu.plan.planner_input import PlannerInput


@dataclass(frozen=True)
class HostSet(Candidate):
    """A set of hosts of one kind, with the number of GPUs to use on each. Region, market and image do not apply."""

    hosts: tuple[str, ...] = ()
    pool: str = ""
    rates: tuple[Decimal | None, ...] = ()
    """Hourly rate in USD of the GPUs used on each host; None for hosts without a rate."""
    of_gpus: int = 0
    """Total number of GPUs on each host."""

    @property
    def label(self) -> str:
        """Host names, such as `red, blue`."""
        return ", ".join(self.hosts)

    def costs(self, nodes: int) -> tuple[CostItem, ...]:
        """Return one cost item for the hosts with a rate and one for the hosts without a rate."""
        del nodes
        known = [rate for rate in self.rates if rate is not None]
        what = f"{'host' if len(known) == 1 else 'hosts'} {self.instance_type}"
        item = CostItem("nodes", len(known), what, sum(known, Decimal(0)), None, "the inventory")
        return (*([item] if known else []), *self.beside)

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form, with amounts as text and null for hosts without a rate."""
        return {
            "hosts": list(self.hosts),
            "pool": self.pool or None,
            "gpu": self.gpu,
            "gpus_per_node": self.gpus_per_node,
            "gpus_on_host": self.of_gpus,
            "gpu_memory_gib": str(self.gpu_memory_gib) if self.gpu_memory_gib else None,
            "hourly_usd": [None if rate is None else format(rate, "f") for rate in self.rates],
        }


def find_host_sets(inputs: PlannerInput) -> CandidateList:
    """Return the usable sets in the order in which they are tried. If there are none, the checks report the reason."""
    sets: list[HostSet] = []
    for spec in inputs.specs:
        for group in group_hosts(inputs, parse_gpu_spec(spec)):
            sets += _sets(inputs, group, parse_gpu_spec(spec))
    return CandidateList(tuple(_in_order(inputs, list(dict.fromkeys(sets)))), ())


def matching_hosts(inputs: PlannerInput, spec: GpuSpec) -> list[OwnHost]:
    """Return every host that matches a spec and is in the recipe's pool, whether or not it is in use."""
    if inputs.hosts is None:
        return []
    pool = inputs.recipe.resources.pool
    return [host for host in inputs.hosts.file.hosts if _fits(host, spec, inputs) and pool in (None, host.pool)]


def group_hosts(inputs: PlannerInput, spec: GpuSpec) -> list[list[OwnHost]]:
    """Return the matching hosts grouped by pool and kind because a cluster cannot mix pools or kinds."""
    by_kind: dict[tuple[object, ...], list[OwnHost]] = {}
    for host in matching_hosts(inputs, spec):
        by_kind.setdefault((host.pool, *host.kind), []).append(host)
    return list(by_kind.values())


def _fits(host: OwnHost, spec: GpuSpec, inputs: PlannerInput) -> bool:
    required = inputs.recipe.resources.gpu_memory
    size_gb = spec.size_gb
    memory = host.gpu_memory_gib
    if spec.model not in (host.gpu, spec_name(host.gpu)) or spec.count is None or not 1 <= spec.count <= host.gpus:
        return False
    if size_gb is not None and memory is not None and size_gb not in _marketed_sizes_gb(inputs, host, memory):
        return False
    return required is None or memory is None or memory >= int(required)


def _marketed_sizes_gb(inputs: PlannerInput, host: OwnHost, gib: Decimal) -> set[int]:
    """Return the nominal memory sizes in GB of a GPU with this much memory."""
    sizes = {memory.sold_as_gb for memory in inputs.catalog.gpus[host.gpu].memories if memory.gib == gib}
    return sizes | {round(gib)}


def _sets(inputs: PlannerInput, group: Sequence[OwnHost], spec: GpuSpec) -> Iterator[HostSet]:
    """Yield disjoint sets of usable hosts, an overlapping set for any remainder, and the sets of running clusters."""
    view, nodes, count = inputs.hosts, inputs.recipe.resources.nodes, spec.count or 0
    usable = [host for host in group if view is not None and view.may_have_free_gpus(host, count)]
    starts = list(range(0, len(usable) - nodes + 1, nodes))
    if usable and starts and starts[-1] != len(usable) - nodes:
        starts.append(len(usable) - nodes)
    for start in starts:
        yield _set(inputs, usable[start : start + nodes], count)
    by_name = {host.name: host for host in group}
    for names, gpus in () if view is None else view.running:
        # The GPUs of the caller's own cluster are in use, but available to a run on that cluster.
        if gpus == count and len(names) == nodes and by_name.keys() >= set(names):
            yield _set(inputs, [by_name[name] for name in names], count)


def _set(inputs: PlannerInput, hosts: Sequence[OwnHost], count: int) -> HostSet:
    first = hosts[0]
    rates = tuple(_rate_of_gpus(host, count) for host in hosts)
    known = [rate for rate in rates if rate is not None]
    memory = first.gpu_memory_gib or Decimal(0)
    return HostSet(
        instance_type=f"{spec_name(first.gpu)}:{count}",
        region="",
        zone=", ".join(host.name for host in hosts),
        market="on-demand",
        node_hourly_usd=sum(known, Decimal(0)) / len(hosts),
        priced_on=inputs.today,
        gpu=first.gpu,
        gpus_per_node=count,
        gpu_memory_gib=memory,
        efa_interfaces=0,
        image="",
        source="the inventory",
        beside=_unrated([host.name for host in hosts if host.rate_usd is None]),
        hosts=tuple(host.name for host in hosts),
        pool=first.pool,
        rates=rates,
        of_gpus=first.gpus,
    )


def _unrated(names: Sequence[str]) -> tuple[CostItem, ...]:
    """Return the cost item for hosts without a rate; empty if there are none."""
    what = f"{'host' if len(names) == 1 else 'hosts'} without a rate: {', '.join(names)}"
    return (CostItem("nodes", len(names), what, None, None, ""),) if names else ()


def _rate_of_gpus(host: OwnHost, count: int) -> Decimal | None:
    """Return the share of the host's rate for this many of its GPUs, rounded to the nano-dollar."""
    if host.rate_usd is None:
        return None
    return (host.rate_usd * count / host.gpus).quantize(Decimal("1e-9")).normalize()


def _in_order(inputs: PlannerInput, sets: list[HostSet]) -> list[HostSet]:
    """Sort by price with `prefer: price`, sets with unrated hosts last. Otherwise keep the given order."""
    if inputs.recipe.resources.prefer != "price":
        return sets
    return sorted(sets, key=lambda host_set: (None in host_set.rates, host_set.node_hourly_usd))
