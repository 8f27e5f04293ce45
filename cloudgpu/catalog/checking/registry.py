"""All checks of the catalog, in order."""

from typing import Final

from cloudgpu.catalog.checking import containers, gpus, types, versions, wheels
from cloudgpu.catalog.checking.known import CatalogData, DataProblem, Rule

RULES: Final[tuple[Rule, ...]] = (
    versions.versions_readable,
    types.hardware_known,
    types.end_told,
    types.offers_sound,
    types.prices_sound,
    types.types_sourced,
    gpus.windows_ordered,
    gpus.gpus_sensible,
    gpus.drivers_fit,
    gpus.gpus_sourced,
    containers.months_sound,
    containers.months_rise,
    containers.months_serve,
    containers.images_sound,
    wheels.wheels_apart,
    wheels.wheels_agree,
    wheels.fabric_sound,
)


def problems(data: CatalogData) -> tuple[DataProblem, ...]:
    """Return the problems that the checks find; empty for consistent data.

    If a version is unreadable, only that is reported, because the other checks compare versions.
    """
    first, *others = RULES
    unreadable = tuple(first(data))
    return unreadable or tuple(problem for rule in others for problem in rule(data))
