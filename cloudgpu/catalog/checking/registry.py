"""All checks of the catalog, in order."""

from typing import Final

from cloudgpu.catalog.checking import containers, gpus, types, versions, wheels
from cloudgpu.catalog.checking.known import DataProblem, Known, Rule

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


def problems(given: Known) -> tuple[DataProblem, ...]:
    """Return the problems that all checks find; none for consistent data.

    Unreadable versions are reported alone, because other checks compare versions.
    """
    first, *others = RULES
    unreadable = tuple(first(given))
    return unreadable or tuple(found for rule in others for found in rule(given))
