"""`quota`: report limits, usage and remaining nodes per quota, and the command that requests an increase."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cloudgpu.app.planning.quota_headroom import RegionQuotas
from cloudgpu.catalog import Catalog, InstanceType
from cloudgpu.catalog.gpu_spec import misfit, parse_gpu_spec, spec_name, types_for_spec
from cloudgpu.catalog.quotas import Quota, quota_of
from cloudgpu.errors import UsageError
from cloudgpu.plan.quota_headroom import QuotaRoom
from cloudgpu.recipe.name_suggestions import suggestion

MarketName = Literal["on-demand", "spot"]
MARKETS: Final[tuple[MarketName, ...]] = ("on-demand", "spot")
_FAMILIES: Final = {"p": ("p5", "p6", "p4d"), "g": ("g5",)}
"""Letter of a quota's families -> one family of each quota that it has."""


@dataclass(frozen=True)
class QuotaSubject:
    """What to report on: an instance type, or if that is None, all families of a quota."""

    kind: InstanceType | None
    family: str
    """The part of the type's name before the dot."""

    @property
    def name(self) -> str:
        """Name of the type; empty for families."""
        return self.kind.name if self.kind else ""


@dataclass(frozen=True)
class Line:
    """One quota in one region, for one type if types were requested."""

    region: str
    quota: Quota
    market: MarketName
    kind: InstanceType | None
    nodes: int
    """Number of nodes requested."""
    room: QuotaRoom | None
    """Limit and usage, or None if unknown."""

    @property
    def needed_vcpus(self) -> int | None:
        """VCPUs of the requested nodes, or None without a type."""
        return self.kind.vcpus * self.nodes if self.kind else None

    @property
    def nodes_free(self) -> int | None:
        """Number of additional nodes of the type that the quota allows, or None if unknown."""
        free = self.room.free_vcpus if self.room else None
        return None if free is None or self.kind is None else free // self.kind.vcpus

    @property
    def enough(self) -> bool | None:
        """Whether the quota allows the requested nodes, or None if unknown."""
        free = None if self.nodes_free is None else self.nodes_free >= self.nodes
        if free is None and self.room and self.needed_vcpus is not None and self.room.limit_vcpus < self.needed_vcpus:
            return False  # the limit is too low even if nothing is running
        return free

    @property
    def request(self) -> str:
        """Command that requests the needed increase from AWS; empty if none is needed or the quota code is unknown."""
        if self.enough or self.needed_vcpus is None or not self.quota.code:
            return ""
        used = self.room.used_vcpus or 0 if self.room else 0
        words = ["aws", "service-quotas", "request-service-quota-increase", "--service-code", "ec2"]
        words += ["--quota-code", self.quota.code, "--desired-value", str(used + self.needed_vcpus)]
        return shlex.join([*words, "--region", self.region])


def wanted(catalog: Catalog, *, gpu: str, instance_type: str) -> tuple[QuotaSubject, ...]:
    """Resolve the options to a type, every launchable type with a GPU, the families of a quota, or all families.

    Raises:
        UsageError: Both options were given, or the name is unknown.
    """
    if gpu and instance_type:
        message = "--gpu and --instance-type exclude each other"
        raise UsageError(message, hint="use one of them")
    if instance_type:
        return (_of_type(catalog, instance_type),)
    if gpu.lower() in ("", *_FAMILIES):
        chosen = [gpu.lower()] if gpu else list(_FAMILIES)
        return tuple(QuotaSubject(None, family) for letter in chosen for family in _FAMILIES[letter])
    return tuple(QuotaSubject(kind, _family(kind)) for kind in _with_gpu(catalog, gpu))


def lines(
    regions: Sequence[RegionQuotas], subjects: Sequence[QuotaSubject], markets: Sequence[MarketName], nodes: int
) -> tuple[Line, ...]:
    """Return the report lines by region; families that share a quota are one line."""
    every = [line for region in regions for line in _of_region(region, subjects, markets, nodes)]
    unique = {(line.region, line.market, line.quota, line.kind and line.kind.name): line for line in every}
    return tuple(unique.values())


def _of_region(
    region: RegionQuotas, subjects: Sequence[QuotaSubject], markets: Sequence[MarketName], nodes: int
) -> Iterator[Line]:
    for market in markets:
        for subject in subjects:
            if subject.kind is None or market in subject.kind.usage_classes:
                quota = quota_of(subject.name or subject.family, market)
                yield Line(region.region, quota, market, subject.kind, nodes, region.room(quota.key))


def _of_type(catalog: Catalog, name: str) -> QuotaSubject:
    kind = catalog.types.get(name)
    if kind is None or kind.provider != "aws":
        known = [rentable.name for rentable in catalog.rentable]
        message = f"unknown instance type {name}{suggestion(name, known)}"
        raise UsageError(message, hint="`cloudgpu gpus` lists them")
    return QuotaSubject(kind, _family(kind))


def _with_gpu(catalog: Catalog, spec: str) -> list[InstanceType]:
    parsed = parse_gpu_spec(spec)
    if parsed.count is not None:
        kinds = list(types_for_spec(spec, catalog))
    else:
        sizes = {f"{spec}:{kind.gpus}" for kind in catalog.rentable if spec_name(kind.gpu) == spec_name(parsed.model)}
        kinds = [kind for size in sorted(sizes) for kind in types_for_spec(size, catalog)]
    launchable = sorted((kind for kind in kinds if not kind.retired), key=lambda kind: (kind.vcpus, kind.name))
    if not launchable:
        mismatch = misfit(spec if parsed.count is not None else f"{spec}:1", catalog)
        message = f"--gpu {spec}: {mismatch.message if mismatch else 'AWS has retired every type with this GPU'}"
        raise UsageError(message, hint="`cloudgpu gpus` lists them; P and G mean all types of a quota")
    return launchable


def _family(kind: InstanceType) -> str:
    return kind.name.partition(".")[0]
