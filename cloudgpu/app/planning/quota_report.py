"""`quota`: report limits, usage and remaining nodes per quota, and the command that requests an increase."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cloudgpu.backends.quota_headroom import RegionQuotas
from cloudgpu.catalog import Catalog, InstanceType
from cloudgpu.catalog.gpu_spec import find_spec_mismatch, parse_gpu_spec, spec_name, types_for_spec
from cloudgpu.catalog.prices_and_quotas import Quota, quota_of
from cloudgpu.errors import UsageError
from cloudgpu.plan.capacity import VcpuHeadroom
from cloudgpu.recipe.problem import suggestion

MarketName = Literal["on-demand", "spot"]
MARKETS: Final[tuple[MarketName, ...]] = ("on-demand", "spot")
_FAMILIES: Final = {"p": ("p5", "p6", "p4d"), "g": ("g5",)}
"""Family letter -> one representative instance family for each of the letter's quotas."""


@dataclass(frozen=True)
class QuotaSubject:
    """Subject of a report line: an instance type, or all families that share a quota if `kind` is None."""

    kind: InstanceType | None
    family: str
    """Instance family: the part of a type's name before the dot."""

    @property
    def name(self) -> str:
        """Name of the instance type; empty for families."""
        return self.kind.name if self.kind else ""


@dataclass(frozen=True)
class QuotaReportLine:
    """One quota in one region, reported for one instance type if types were requested."""

    region: str
    quota: Quota
    market: MarketName
    kind: InstanceType | None
    nodes: int
    """Number of nodes requested."""
    room: VcpuHeadroom | None
    """Limit and usage, or None if unknown."""

    @property
    def needed_vcpus(self) -> int | None:
        """Number of vCPUs that the requested nodes need, or None if the line has no instance type."""
        return self.kind.vcpus * self.nodes if self.kind else None

    @property
    def nodes_free(self) -> int | None:
        """Number of additional nodes of this type that the quota allows, or None if unknown."""
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
        """Command that requests the needed increase from AWS.

        Empty if the quota is high enough, if the line has no instance type, or if the quota code is unknown.
        """
        if self.enough or self.needed_vcpus is None or not self.quota.code:
            return ""
        used = self.room.used_vcpus or 0 if self.room else 0
        words = ["aws", "service-quotas", "request-service-quota-increase", "--service-code", "ec2"]
        words += ["--quota-code", self.quota.code, "--desired-value", str(used + self.needed_vcpus)]
        return shlex.join([*words, "--region", self.region])


def report_subjects(catalog: Catalog, *, gpu: str, instance_type: str) -> tuple[QuotaSubject, ...]:
    """Return the subjects to report: one instance type, all launchable types with a GPU, or instance families.

    Raises:
        UsageError: Both options were given, the name is unknown, or AWS has retired every type with the GPU.
    """
    if gpu and instance_type:
        message = "--gpu and --instance-type are mutually exclusive"
        raise UsageError(message, hint="use one of them")
    if instance_type:
        return (_of_type(catalog, instance_type),)
    if gpu.lower() in ("", *_FAMILIES):
        families = [gpu.lower()] if gpu else list(_FAMILIES)
        return tuple(QuotaSubject(None, family) for letter in families for family in _FAMILIES[letter])
    return tuple(QuotaSubject(launchable, _family(launchable)) for launchable in _with_gpu(catalog, gpu))


def quota_report_lines(
    regions: Sequence[RegionQuotas], subjects: Sequence[QuotaSubject], markets: Sequence[MarketName], nodes: int
) -> tuple[QuotaReportLine, ...]:
    """Return the report lines, grouped by region. Families that share a quota appear once."""
    reported = [line for region in regions for line in _of_region(region, subjects, markets, nodes)]
    unique = {(line.region, line.market, line.quota, line.kind and line.kind.name): line for line in reported}
    return tuple(unique.values())


def _of_region(
    region: RegionQuotas, subjects: Sequence[QuotaSubject], markets: Sequence[MarketName], nodes: int
) -> Iterator[QuotaReportLine]:
    for market in markets:
        for subject in subjects:
            if subject.kind is None or market in subject.kind.usage_classes:
                quota = quota_of(subject.name or subject.family, market)
                yield QuotaReportLine(region.region, quota, market, subject.kind, nodes, region.room(quota.key))


def _of_type(catalog: Catalog, name: str) -> QuotaSubject:
    instance_type = catalog.types.get(name)
    if instance_type is None or instance_type.provider != "aws":
        known = [rentable.name for rentable in catalog.rentable]
        message = f"unknown instance type {name}{suggestion(name, known)}"
        raise UsageError(message, hint="run `cloudgpu gpus` to list the known types")
    return QuotaSubject(instance_type, _family(instance_type))


def _with_gpu(catalog: Catalog, spec: str) -> list[InstanceType]:
    parsed = parse_gpu_spec(spec)
    if parsed.count is not None:
        instance_types = list(types_for_spec(spec, catalog))
    else:
        sizes = {
            f"{spec}:{instance_type.gpus}"
            for instance_type in catalog.rentable
            if spec_name(instance_type.gpu) == spec_name(parsed.model)
        }
        instance_types = [instance_type for size in sorted(sizes) for instance_type in types_for_spec(size, catalog)]
    launchable = sorted(
        (instance_type for instance_type in instance_types if not instance_type.retired),
        key=lambda instance_type: (instance_type.vcpus, instance_type.name),
    )
    if not launchable:
        mismatch = find_spec_mismatch(spec if parsed.count is not None else f"{spec}:1", catalog)
        message = f"--gpu {spec}: {mismatch.message if mismatch else 'AWS has retired every type with this GPU'}"
        raise UsageError(message, hint="run `cloudgpu gpus` to list the GPUs, or use --gpu P or --gpu G")
    return launchable


def _family(instance_type: InstanceType) -> str:
    return instance_type.name.partition(".")[0]
