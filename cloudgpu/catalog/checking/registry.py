"""All catalog checks, in order."""

from typing import Final

from cloudgpu.catalog.checking import containers, gpus, types, versions, wheels
from cloudgpu.catalog.checking.known import CatalogData, DataProblem, Rule

RULES: Final[tuple[Rule, ...]] = (
    versions.check_versions,
    types.check_hardware,
    types.check_retirement,
    types.check_offers,
    types.check_prices,
    types.check_unsupported,
    types.check_type_sources,
    gpus.check_version_ranges,
    gpus.check_gpus,
    gpus.check_bootstrap_drivers,
    gpus.check_gpu_sources,
    containers.check_months,
    containers.check_month_order,
    containers.check_months_for_gpus,
    containers.check_images,
    wheels.check_wheels,
    wheels.check_wheels_for_gpus,
    wheels.check_efa_minimums,
)


def problems(data: CatalogData) -> tuple[DataProblem, ...]:
    """Return the problems that the checks find; empty for consistent data.

    If a version cannot be parsed, only unparseable versions are reported, because the other checks compare versions.
    """
    first, *others = RULES
    unreadable = tuple(first(data))
    return unreadable or tuple(problem for rule in others for problem in rule(data))
