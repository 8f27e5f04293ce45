"""`quota`: what the account may run, what it runs, how many nodes that leaves, and how to ask for more."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cloudgpu.app.planning.quota_headroom import RegionQuotas
from cloudgpu.catalog import Catalog, InstanceType
from cloudgpu.catalog.gpu_spec import misfit, parse_gpu_spec, spec_name, types_for_spec
from cloudgpu.catalog.quotas import Quota, quota_of
from cloudgpu.errors import UsageError
from cloudgpu.plan.quota_room import QuotaRoom
from cloudgpu.recipe.nearest import suggestion

MarketName = Literal["on-demand", "spot"]
MARKETS: Final[tuple[MarketName, ...]] = ("on-demand", "spot")
_FAMILIES: Final = {"p": ("p5", "p6", "p4d"), "g": ("g5",)}
"""Letter of a quota's families -> one family of each quota that it has."""


@dataclass(frozen=True)
class Wanted:
    """What is asked about: an instance type, or when that is None all of a quota's families."""

    kind: InstanceType | None
    family: str
    """What stands before the dot."""

    @property
    def name(self) -> str:
        """The type's name; empty for families."""
        return self.kind.name if self.kind else ""


@dataclass(frozen=True)
class Line:
    """One quota in one region, for one type where types were asked about."""

    region: str
    quota: Quota
    market: MarketName
    kind: InstanceType | None
    nodes: int
    """How many are wanted."""
    room: QuotaRoom | None
    """None is unknown."""

    @property
    def needed_vcpus(self) -> int | None:
        """Of the nodes that are wanted; None where no type was asked about."""
        return self.kind.vcpus * self.nodes if self.kind else None

    @property
    def nodes_free(self) -> int | None:
        """How many nodes of the type the quota still lets run; None where that is unknown."""
        free = self.room.free_vcpus if self.room else None
        return None if free is None or self.kind is None else free // self.kind.vcpus

    @property
    def enough(self) -> bool | None:
        """Whether the nodes that are wanted may run; None where that is unknown."""
        free = None if self.nodes_free is None else self.nodes_free >= self.nodes
        if free is None and self.room and self.needed_vcpus is not None and self.room.limit_vcpus < self.needed_vcpus:
            return False  # whatever runs, so many never may
        return free

    @property
    def request(self) -> str:
        """The command that asks AWS for as much as is needed; empty where it is enough, or no code is certain."""
        if self.enough or self.needed_vcpus is None or not self.quota.code:
            return ""
        used = self.room.used_vcpus or 0 if self.room else 0
        words = ["aws", "service-quotas", "request-service-quota-increase", "--service-code", "ec2"]
        words += ["--quota-code", self.quota.code, "--desired-value", str(used + self.needed_vcpus)]
        return shlex.join([*words, "--region", self.region])


def wanted(catalog: Catalog, *, gpu: str, instance_type: str) -> tuple[Wanted, ...]:
    """What the options mean: a type, every type that can be launched with a GPU, a family's letter, or all families.

    Raises:
        UsageError: They contradict each other, or nothing is called so.
    """
    if gpu and instance_type:
        message = "--gpu and --instance-type name two things"
        raise UsageError(message, hint="give one of them")
    if instance_type:
        return (_of_type(catalog, instance_type),)
    if gpu.lower() in ("", *_FAMILIES):
        chosen = [gpu.lower()] if gpu else list(_FAMILIES)
        return tuple(Wanted(None, family) for letter in chosen for family in _FAMILIES[letter])
    return tuple(Wanted(kind, _family(kind)) for kind in _with_gpu(catalog, gpu))


def lines(
    found: Sequence[RegionQuotas], about: Sequence[Wanted], markets: Sequence[MarketName], nodes: int
) -> tuple[Line, ...]:
    """By region, then as asked; families that count against one quota are one line."""
    told = [line for region in found for line in _of_region(region, about, markets, nodes)]
    return tuple({(line.region, line.market, line.quota, line.kind and line.kind.name): line for line in told}.values())


def _of_region(
    region: RegionQuotas, about: Sequence[Wanted], markets: Sequence[MarketName], nodes: int
) -> Iterator[Line]:
    for market in markets:
        for one in about:
            if one.kind is None or market in one.kind.usage_classes:
                quota = quota_of(one.name or one.family, market)
                yield Line(region.region, quota, market, one.kind, nodes, region.room(quota.key))


def _of_type(catalog: Catalog, name: str) -> Wanted:
    kind = catalog.types.get(name)
    if kind is None or kind.provider != "aws":
        known = [one.name for one in catalog.rentable]
        message = f"unknown instance type {name}{suggestion(name, known)}"
        raise UsageError(message, hint="`cloudgpu gpus` lists them")
    return Wanted(kind, _family(kind))


def _with_gpu(catalog: Catalog, spec: str) -> list[InstanceType]:
    asked = parse_gpu_spec(spec)
    if asked.count is not None:
        found = list(types_for_spec(spec, catalog))
    else:
        sizes = {f"{spec}:{kind.gpus}" for kind in catalog.rentable if spec_name(kind.gpu) == spec_name(asked.model)}
        found = [kind for one in sorted(sizes) for kind in types_for_spec(one, catalog)]
    living = sorted((kind for kind in found if not kind.retired), key=lambda kind: (kind.vcpus, kind.name))
    if not living:
        wrong = misfit(spec if asked.count is not None else f"{spec}:1", catalog)
        message = f"--gpu {spec}: {wrong.message if wrong else 'no type with it can be launched any more'}"
        raise UsageError(message, hint="`cloudgpu gpus` lists them; P and G mean all types of a quota")
    return living


def _family(kind: InstanceType) -> str:
    return kind.name.partition(".")[0]
